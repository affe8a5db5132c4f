/* Provider ucx: hooks of workers and endpoints: creation, addresses, end. */
#define _GNU_SOURCE
#include "ucx_uct.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ADDRESS_BYTES 512  /* read of an address whose length is not known */
#define ADDRESS_WHOLE 8192 /* longest raw field of a definition */

static void define_version(void)
{
    static pid_t defined; /* a forked child has a file of its own */
    if (__atomic_exchange_n(&defined, getpid(), __ATOMIC_RELAXED) == getpid())
        return;
    const char *(*version)(void) = (const char *(*)(void))st_next("ucp_get_version_string", NULL);
    if (version)
        st_def_ucp_version(version());
}

/* ---- workers ----------------------------------------------------------------------------------------------------------------- */

static struct st_object *new_worker(ucp_worker_h worker, uint64_t context)
{
    define_version();
    struct st_object *o = st_object_new(ST_KIND_WORKER, (uintptr_t)worker);
    if (o->id)
        st_def_ucp_worker(o->id, context);
    return o;
}

struct st_object *ucx_new_worker(ucp_worker_h worker) { return new_worker(worker, 0); }

ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params, ucp_worker_h *worker_p)
{
    UCX_REAL(ucp_worker_create);
    struct ucx_call c = {.t = ucx_enter()};
    if (!c.t)
        return real(context, params, worker_p);
    ucx_begin(&c);
    ucs_status_t status = real(context, params, worker_p);
    ucx_end(&c);
    if (status == UCS_OK)
        new_worker(*worker_p, (uintptr_t)context);
    ucx_leave(c.t);
    return status;
}

void ucp_worker_destroy(ucp_worker_h worker)
{
    UCX_REAL(ucp_worker_destroy);
    struct ucx_call c = {.t = ucx_enter()};
    if (!c.t) {
        real(worker);
        return;
    }
    /* its name goes first: another thread may get the same address for a new worker before this call has returned */
    struct st_object *o = st_find(ST_KIND_WORKER, (uintptr_t)worker);
    st_object_forget(ST_KIND_WORKER, (uintptr_t)worker);
    ucx_begin(&c);
    real(worker);
    ucx_end(&c);
    if (o->id) {
        ucx_drop_worker(o);
        st_object_end(o);
    }
    ucx_leave(c.t);
}

static void define_address(ucp_worker_h worker, const void *address, size_t length)
{
    struct st_object *o = ucx_worker(worker);
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ ((const uint8_t *)address)[i]) * 0x100000001b3;
    if (o->user[1] == hash) /* asked for again */
        return;
    o->user[1] = hash;
    st_def_ucp_worker_address(o->id, length, hash, address, length < ADDRESS_WHOLE ? length : ADDRESS_WHOLE);
}

ucs_status_t ucp_worker_get_address(ucp_worker_h worker, ucp_address_t **address_p, size_t *address_length_p)
{
    UCX_REAL(ucp_worker_get_address);
    struct ucx_call c = {.t = ucx_enter()};
    if (!c.t)
        return real(worker, address_p, address_length_p);
    ucx_begin(&c);
    ucs_status_t status = real(worker, address_p, address_length_p);
    ucx_end(&c);
    if (status == UCS_OK)
        define_address(worker, *address_p, *address_length_p);
    ucx_leave(c.t);
    return status;
}

ucs_status_t ucp_worker_query(ucp_worker_h worker, ucp_worker_attr_t *attr)
{
    UCX_REAL(ucp_worker_query);
    struct ucx_call c = {.t = ucx_enter()};
    if (!c.t)
        return real(worker, attr);
    ucx_begin(&c);
    ucs_status_t status = real(worker, attr);
    ucx_end(&c);
    if (status == UCS_OK && attr->field_mask & UCP_WORKER_ATTR_FIELD_ADDRESS)
        define_address(worker, attr->address, attr->address_length);
    ucx_leave(c.t);
    return status;
}

/* ---- endpoints --------------------------------------------------------------------------------------------------------------- */

struct st_object *ucx_new_endpoint(ucp_ep_h ep)
{
    define_version();
    struct st_object *o = st_object_new(ST_KIND_ENDPOINT, (uintptr_t)ep);
    if (o->id)
        st_def_ucp_endpoint(o->id, 0, ST_UCP_ENDPOINT_SOURCE_UNKNOWN, "", 0, "");
    return o;
}

static void socket_name(char *to, size_t size, const struct sockaddr *s)
{
    char text[INET6_ADDRSTRLEN];
    if (s->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)s;
        snprintf(to, size, "%s:%u", inet_ntop(AF_INET, &in->sin_addr, text, sizeof text), ntohs(in->sin_port));
    } else if (s->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)s;
        snprintf(to, size, "[%s]:%u", inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text), ntohs(in->sin6_port));
    } else {
        snprintf(to, size, "address family %u", s->sa_family);
    }
}

/* The other side of a connection request, which ucp_ep_create uses up. */
static void requester_name(char *to, size_t size, ucp_conn_request_h request)
{
    __typeof__(&ucp_conn_request_query) query = (__typeof__(query))st_next("ucp_conn_request_query", NULL);
    ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    if (query && query(request, &attr) == UCS_OK)
        socket_name(to, size, (const struct sockaddr *)&attr.client_address);
}

ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ep_p)
{
    UCX_REAL(ucp_ep_create);
    struct ucx_call c = {.t = ucx_enter()};
    uint8_t address[ADDRESS_BYTES];
    size_t length = 0;
    char name[96] = "";
    unsigned source = ST_UCP_ENDPOINT_SOURCE_UNKNOWN;
    if (!c.t)
        return real(worker, params, ep_p);
    uint64_t mask = params->field_mask;
    if (mask & UCP_EP_PARAM_FIELD_CONN_REQUEST) {
        source = ST_UCP_ENDPOINT_SOURCE_CONNECTION_REQUEST;
        requester_name(name, sizeof name, params->conn_request);
    } else if (mask & UCP_EP_PARAM_FIELD_SOCK_ADDR) {
        source = ST_UCP_ENDPOINT_SOURCE_SOCKET_ADDRESS;
        socket_name(name, sizeof name, params->sockaddr.addr);
    } else if (mask & UCP_EP_PARAM_FIELD_REMOTE_ADDRESS) {
        source = ST_UCP_ENDPOINT_SOURCE_WORKER_ADDRESS;
        length = st_peek(address, params->address, sizeof address);
    }
    ucx_begin(&c);
    ucs_status_t status = real(worker, params, ep_p);
    ucx_end(&c);
    if (status == UCS_OK) {
        struct st_object *w = ucx_worker(worker), *o = st_object_new(ST_KIND_ENDPOINT, (uintptr_t)*ep_p);
        if (o->id) {
            o->user[0] = w->id;
            st_def_ucp_endpoint(o->id, w->id, source, address, length, name);
            uct_made(c.made, o);
        }
    }
    ucx_leave(c.t);
    return status;
}

/* The name of an endpoint that is about to be closed goes first, as that of a worker does. What is still outstanding on it completes
 * later, on the ended object. */
static struct st_object *closing(ucp_ep_h ep)
{
    struct st_object *o = st_find(ST_KIND_ENDPOINT, (uintptr_t)ep);
    st_object_forget(ST_KIND_ENDPOINT, (uintptr_t)ep);
    return o;
}

static void closed(struct st_object *o, ucp_ep_h ep, bool accepted)
{
    if (!o->id)
        return;
    if (accepted)
        st_object_end(o);
    else
        st_object_alias(o, ST_KIND_ENDPOINT, (uintptr_t)ep);
}

ucs_status_ptr_t ucp_ep_close_nb(ucp_ep_h ep, unsigned mode)
{
    UCX_REAL(ucp_ep_close_nb);
    struct ucx_call c = {.t = ucx_enter()};
    if (!c.t)
        return real(ep, mode);
    struct st_object *o = closing(ep);
    ucx_begin(&c);
    ucs_status_ptr_t result = real(ep, mode);
    ucx_end(&c);
    closed(o, ep, !UCS_PTR_IS_ERR(result));
    ucx_leave(c.t);
    return result;
}

ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_ep_close_nbx);
    struct ucx_call c = {.t = ucx_enter()};
    if (!c.t)
        return real(ep, param);
    struct st_object *o = closing(ep);
    ucx_begin(&c);
    ucs_status_ptr_t result = real(ep, param);
    ucx_end(&c);
    closed(o, ep, !UCS_PTR_IS_ERR(result));
    ucx_leave(c.t);
    return result;
}

ucs_status_ptr_t ucp_disconnect_nb(ucp_ep_h ep)
{
    UCX_REAL(ucp_disconnect_nb);
    struct ucx_call c = {.t = ucx_enter()};
    if (!c.t)
        return real(ep);
    struct st_object *o = closing(ep);
    ucx_begin(&c);
    ucs_status_ptr_t result = real(ep);
    ucx_end(&c);
    closed(o, ep, !UCS_PTR_IS_ERR(result));
    ucx_leave(c.t);
    return result;
}

void ucp_ep_destroy(ucp_ep_h ep)
{
    UCX_REAL(ucp_ep_destroy);
    struct ucx_call c = {.t = ucx_enter()};
    if (!c.t) {
        real(ep);
        return;
    }
    struct st_object *o = closing(ep);
    ucx_begin(&c);
    real(ep);
    ucx_end(&c);
    closed(o, ep, true);
    ucx_leave(c.t);
}
