/* Events behind descriptors: completion channels and asynchronous events. */
#include "hca.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int evq_init(struct evq *q)
{
	memset(q, 0, sizeof *q);
	pthread_mutex_init(&q->mu, NULL);
	q->fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	return q->fd < 0 ? -1 : 0;
}

void evq_close(struct evq *q)
{
	close(q->fd);
	free(q->events);
	pthread_mutex_destroy(&q->mu);
}

void evq_push(struct evq *q, void *object, int type)
{
	pthread_mutex_lock(&q->mu);
	if (q->count == q->capacity) {
		unsigned n = q->capacity ? 2 * q->capacity : 16;
		struct ev *e = realloc(q->events, n * sizeof *e);

		if (!e) {
			pthread_mutex_unlock(&q->mu);
			return;
		}
		q->events = e;
		q->capacity = n;
	}
	q->events[q->count++] = (struct ev){ object, type };
	pthread_mutex_unlock(&q->mu);
	eventfd_write(q->fd, 1);
}

int evq_pop(struct evq *q, struct ev *out)
{
	for (;;) {
		uint64_t one;

		if (read(q->fd, &one, sizeof one) != sizeof one)
			return -1;
		pthread_mutex_lock(&q->mu);
		if (q->count) {
			*out = q->events[0];
			memmove(q->events, q->events + 1, --q->count * sizeof *q->events);
			pthread_mutex_unlock(&q->mu);
			return 0;
		}
		pthread_mutex_unlock(&q->mu);
		/* its event was forgotten: wait for the next */
	}
}

void evq_forget(struct evq *q, void *object)
{
	unsigned kept = 0;

	pthread_mutex_lock(&q->mu);
	for (unsigned i = 0; i < q->count; i++)
		if (q->events[i].object != object)
			q->events[kept++] = q->events[i];
	q->count = kept;
	pthread_mutex_unlock(&q->mu);
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct hca_channel *ch = calloc(1, sizeof *ch);

	if (!ch)
		return NULL;
	if (evq_init(&ch->queue)) {
		free(ch);
		return NULL;
	}
	ch->ch.context = c;
	ch->ch.fd = ch->queue.fd;
	return &ch->ch;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	struct hca_channel *ch = (struct hca_channel *)channel;

	if (channel->refcnt)
		return EBUSY;
	evq_close(&ch->queue);
	free(ch);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	struct ev e;

	if (evq_pop(&((struct hca_channel *)channel)->queue, &e))
		return -1;
	*cq = e.object;
	*cq_context = (*cq)->cq_context;
	pthread_mutex_lock(&(*cq)->mutex);
	to_cq(*cq)->events++;
	pthread_mutex_unlock(&(*cq)->mutex);
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += n;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

void raise_async(struct ibv_context *c, enum ibv_event_type type, void *object)
{
	hca_log("async event %d", type);
	evq_push(&to_context(c)->async, object, type);
}

int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *event)
{
	struct ev e;

	if (evq_pop(&to_context(c)->async, &e))
		return -1;
	memset(event, 0, sizeof *event);
	event->event_type = e.type;
	event->element.qp = e.object; /* or cq: a union of pointers */
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event; /* objects do not wait for it when destroyed */
}
