/* The pages that kernels ring, and the thread that looks at them: doorbell.h. */
#define _GNU_SOURCE
#include "doorbell.h"
#include "libc.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* As the functions of libc.h; but a sanitizer has to see threads being made. */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
static inline int st_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument)
{
    ST_LIBC(pthread_create);
    return real ? real(thread, attr, start, argument) : ENOSYS;
}

static inline int st_pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    ST_LIBC(pthread_sigmask);
    return real ? real(how, set, old) : ENOSYS;
}

static inline int st_pthread_mutex_trylock(pthread_mutex_t *m)
{
    ST_LIBC(pthread_mutex_trylock);
    return real ? real(m) : ENOSYS;
}

static inline int st_pthread_attr_setstacksize(pthread_attr_t *a, size_t size)
{
    ST_LIBC(pthread_attr_setstacksize);
    return real ? real(a, size) : ENOSYS;
}

#define pthread_attr_setstacksize st_pthread_attr_setstacksize
#define pthread_mutex_trylock st_pthread_mutex_trylock
#define pthread_create st_pthread_create
#define pthread_sigmask st_pthread_sigmask
#endif

struct bell_page bell_pages[BELL_PAGES];
unsigned bell_used;
bool bell_over;
bool bell_abandoned;
struct st_doorbells bell_profile;
bool bell_careful;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t setting_up = PTHREAD_MUTEX_INITIALIZER; /* pages and queues come and go one at a time */
static sigset_t signals_were; /* of the thread that has mu */
/* The thread has setting_up, and calls drivers, which take their time: signals are not held back meanwhile. A handler that ends the process is not to wait for it. */
static __thread bool sets_up;
static uint32_t wanted;   /* others wait for the lock, which the thread that looks would take again at once */
static pid_t watching;    /* the process whose thread looks */
static uint32_t pages_in; /* raised when a page comes */
static const volatile uint64_t *waited_for; /* what the thread that looks may be waiting at, and touch; NULL: nothing */

bool bell_mine(void) { return BELL_GET(watching) == getpid(); }

void bell_take(void)
{
    sigset_t signals = st_unsignalled();
    __atomic_fetch_add(&wanted, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_lock(&mu);
    signals_were = signals;
    bell_careful = true;
}

void bell_give(void)
{
    sigset_t signals = signals_were;
    pthread_mutex_unlock(&mu);
    __atomic_fetch_sub(&wanted, 1, __ATOMIC_ACQ_REL);
    st_signalled(&signals);
}

bool bell_try(unsigned times)
{
    sigset_t signals = st_unsignalled();
    __atomic_fetch_add(&wanted, 1, __ATOMIC_ACQ_REL);
    for (unsigned i = 0; i < times; i++) {
        if (!pthread_mutex_trylock(&mu)) {
            signals_were = signals;
            bell_careful = true;
            return true;
        }
        if (i < BELL_SPINS)
            st_pause();
        else
            sched_yield();
    }
    __atomic_fetch_sub(&wanted, 1, __ATOMIC_ACQ_REL);
    st_signalled(&signals);
    return false;
}

bool bell_set_up(void)
{
    if (sets_up)
        return false;
    sets_up = true;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    pthread_mutex_lock(&setting_up);
    return true;
}

void bell_set_up_done(void)
{
    pthread_mutex_unlock(&setting_up);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    sets_up = false;
}

/* ---- the thread that looks --------------------------------------------------------------------------------------------------------------------- */

/* Where nothing was rung for a second, it sleeps for a ten-thousandth of the time since then. */
static void nap(uint64_t silent_ms)
{
    enum { LONGEST_NS = 1000000 };
    uint64_t ns = silent_ms * 100;
    const struct timespec t = {0, ns < LONGEST_NS ? (long)ns : LONGEST_NS};
    nanosleep(&t, NULL);
}

/* Waits until the thread that looks does not touch a register that is not looked at any more. false: that does not end. */
static bool looker_passed(const struct bell_page *w)
{
    const struct timespec while_ = {0, 100000};
    for (unsigned i = 0; i < 5000 && BELL_GET(waited_for) == bell_word(w, 0); i++)
        nanosleep(&while_, NULL);
    return BELL_GET(waited_for) != bell_word(w, 0);
}

/* The calling thread goes where the profile wants it. false: it may not. */
bool bell_place(const char *name)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (unsigned i = 0; *bell_profile.cpus && i < CPU_SETSIZE; i++)
        if (st_in_ranges(bell_profile.cpus, i) == 1)
            CPU_SET(i, &set);
    prctl(PR_SET_NAME, name);
    prctl(PR_SET_TIMERSLACK, 1);
    return !*bell_profile.cpus || !sched_setaffinity(0, sizeof set, &set);
}

/* How doorbells are looked at, and what of the profile is not possible here. */
static enum spin prepare(void)
{
    struct spin_cpu cpu;
    spin_cpu(&cpu);
    enum spin wanted = bell_profile.poll, way = spin_choose(wanted, &cpu);
    bool placed = bell_place("sgm-doorbell"), other = wanted != SPIN_AUTO && wanted != way;
    st_def_doorbell_watch(spin_name(way), 2, bell_profile.threshold, placed ? bell_profile.cpus : "",
                          other && !placed ? "the processor does not have what doorbell.poll names, and the process may not run on doorbell.cpus"
                          : other          ? "the processor does not have what doorbell.poll names"
                          : !placed        ? "the process may not run on doorbell.cpus"
                                           : "");
    return way;
}

static void *look(void *arg)
{
    enum { SPINS = 1000, LOOK_AT_CLOCK = 256, SILENCE_MS = 1000 };
    (void)arg;
    enum spin way = prepare();
    bool by_word = way == SPIN_UMWAIT || way == SPIN_MWAITX;
    uint64_t since = 0, silent = 0;
    unsigned idle = 0;
    while (bell_mine()) {
        while (__atomic_load_n(&wanted, __ATOMIC_ACQUIRE))
            sched_yield();
        uint32_t pages = BELL_GET(pages_in);
        const struct bell_page *one = NULL;
        unsigned live = 0;
        bool any = false, sleeps = silent >= SILENCE_MS;
        pthread_mutex_lock(&mu);
        bell_careful = silent != 0; /* it may have slept */
        for (unsigned i = 0; i < bell_used; i++)
            if (bell_pages[i].reg) {
                any = bell_look(&bell_pages[i], true) || any;
                one = &bell_pages[i];
                live++;
            }
        const volatile uint64_t *at = by_word && one && !any && !sleeps ? bell_word(one, 0) : NULL;
        bool alone = live == 1 && one->size < BELL_AREA;
        BELL_SET(waited_for, at);
        pthread_mutex_unlock(&mu);
        if (!live) {
            syscall(SYS_futex, &pages_in, FUTEX_WAIT_PRIVATE, pages, NULL, NULL, 0);
            idle = 0;
        }
        idle = any ? 0 : idle + 1;
        if (any || !live) {
            since = silent = 0;
            continue;
        }
        if (idle % LOOK_AT_CLOCK == 0) {
            uint64_t now = bell_milliseconds();
            since = since ? since : now;
            silent = now - since;
        }
        if (sleeps)
            nap(silent);
        else if (idle < SPINS || by_word)
            spin_wait(way, at, alone);
        else
            sched_yield();
        BELL_SET(waited_for, NULL);
    }
    return NULL;
}

/* Detached; the program's signals are for its own threads. */
bool bell_thread(void *(*run)(void *))
{
    enum { STACK = 2 << 20 };
    pthread_t t;
    pthread_attr_t a;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&a);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&a, STACK); /* not what the program, or who limits its stack, wants for its own */
    bool ok = !pthread_create(&t, &a, run, NULL);
    pthread_attr_destroy(&a);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return ok;
}

/* ---- pages, by the program's threads --------------------------------------------------------------------------------------------------------------- */

void bell_settle(struct bell_page *w)
{
    bell_take();
    if (!w->reg) { /* it has gone meanwhile, or is none */
        bell_give();
        return;
    }
    w = w->home;
    bell_look_again(w);
    uint32_t asked = w->asked;
    for (struct bell_queue *o = w->queues; o; o = o->next) {
        o->late = false; /* a kernel that the driver waited for may have ended */
        bell_wait(o);
    }
    bell_give();
    for (unsigned i = 0; i < 10000 && BELL_GET(w->answered) != asked; i++) {
        const struct timespec t = {0, 100000};
        copier_wake();
        nanosleep(&t, NULL);
    }
    bell_take();
    for (struct bell_queue *o = w->queues; o; o = o->next)
        bell_wait(o);
    bell_give();
}

/* The one that has the queues of a page; NULL: none of its registers is looked at. */
static struct bell_page *page_by_number(uint32_t number)
{
    for (unsigned i = 0; i < BELL_GET(bell_used); i++)
        if (BELL_GET(bell_pages[i].reg) && bell_pages[i].number == number && BELL_GET(bell_pages[i].home) == &bell_pages[i])
            return &bell_pages[i];
    return NULL;
}

static void queue_changes(uint32_t page, const void *key, enum st_queue_change change)
{
    struct bell_page *w;
    struct st_queue q;
    if (!bell_mine() || !page_by_number(page))
        return;
    int saved = errno, cancel = st_uncancelled();
    if (bell_set_up()) {
        if ((w = page_by_number(page))) {
            bell_settle(w);
            bell_queue_drop(w, key);
            if (change == ST_QUEUE_COMES && st_queue_by(key, &q))
                bell_queue_add(w, &q, false);
        }
        bell_set_up_done();
    }
    st_cancelled(cancel);
    errno = saved;
}

static void settle_all(void)
{
    int cancel = st_uncancelled();
    for (unsigned i = 0; i < BELL_GET(bell_used); i++)
        bell_settle(&bell_pages[i]);
    st_cancelled(cancel);
}

/* What the copying thread has left where it does not come back. */
static void count_left(void)
{
    bell_left_lost();
    if (!BELL_GET(bell_abandoned))
        return;
    bell_take();
    for (unsigned i = 0; i < bell_used; i++)
        for (struct bell_queue *o = bell_pages[i].reg ? bell_pages[i].queues : NULL; o; o = o->next)
            bell_queue_lost(o);
    bell_give();
}

__attribute__((destructor)) static void last(void)
{
    if (!bell_mine())
        return;
    if (!BELL_GET(bell_abandoned))
        settle_all();
    count_left();
}

/* As a handler of exit(): drivers came before and have theirs, which end them, called after this one. Destructors are too late to read a GPU's memory. */
static void end(void)
{
    if (!bell_mine())
        return;
    settle_all();
    BELL_SET(bell_over, true);
    if (!copier_passed())
        BELL_SET(bell_abandoned, true);
    count_left();
}

/* The threads run, in this process. */
static bool start(void)
{
    if (bell_mine())
        return true;
    if (watching) { /* a forked child, without the threads that may have held the lock: its parent's pages are not its own */
        pthread_mutex_init(&mu, NULL);
        wanted = 0;
        memset(bell_pages, 0, bell_used * sizeof *bell_pages);
        bell_used = 0;
        bell_over = bell_abandoned = false;
        waited_for = NULL;
    }
    if (bell_over || !st_doorbells(&bell_profile) || !bell_profile.enabled || bell_profile.threads < 2 || !copier_start())
        return false;
    BELL_SET(watching, getpid());
    if (!bell_thread(look)) {
        BELL_SET(watching, 0);
        return false;
    }
    __atomic_store_n(&st_queue_changes, queue_changes, __ATOMIC_RELEASE);
    static bool known; /* a forked child has it too */
    if (!known && !atexit(end))
        known = true;
    return true;
}

static bool page_alive(const struct bell_page *w) { return w->driver->alive((void *)((uintptr_t)w->page & ~4095ul)); }

/* The queues of a page of the device's, one of whose registers is looked at now. */
static void add_queues(struct bell_page *home)
{
    enum { MOST = 16 };
    struct st_queue q[MOST];
    for (unsigned k = 0, n = st_queues_of(home->number, q, MOST); k < n && k < MOST; k++)
        bell_queue_add(home, &q[k], true);
}

/* Another register has the queues from here on, with what the driver has made for them. With the lock. */
static void hand_over(struct bell_page *w, struct bell_page *next)
{
    struct bell_page was = *w;
    memcpy(w->streams, next->streams, sizeof w->streams);
    memcpy(next->streams, was.streams, sizeof next->streams);
    next->held = was.held;
    next->answered = was.answered;
    BELL_SET(next->asked, was.asked);
    next->spare = was.spare;
    w->spare = NULL;
    BELL_SET(next->queues, was.queues);
    BELL_SET(w->queues, NULL);
}

/* A register is looked at no longer. */
static void release(struct bell_page *w, bool alive)
{
    struct bell_page *next = NULL;
    bell_settle(w);
    bell_take();
    for (unsigned i = 0; i < bell_used; i++) {
        struct bell_page *x = &bell_pages[i];
        if (x != w && x->reg && x->home == w) {
            next = next ? next : x;
            BELL_SET(x->home, next);
        }
    }
    if (next && alive)
        hand_over(w, next);
    BELL_SET(w->reg, NULL);
    bell_give();
    if (copier_passed() && looker_passed(w)) {
        bell_page_close(w, alive);
    } else { /* it stays as it is */
        while (w->queues)
            bell_queue_drop(w, w->queues->q.key);
    }
    if (next && !alive)
        add_queues(next);
}

static bool interpose(const struct devmem *driver, void *p, size_t size, const struct st_page *page, uint64_t *device)
{
    size_t most = page->reg + page->size - (uintptr_t)p;
    struct bell_page *home = page_by_number(page->number), *w = bell_pages;
    while (w < bell_pages + BELL_PAGES && w->taken)
        w++;
    if (w == bell_pages + BELL_PAGES || !bell_page_open(w, driver, p, size < most ? size : most, page->number, device))
        return false;
    bell_take();
    w->home = home ? home : w;
    BELL_SET(w->reg, p);
    if (w >= bell_pages + bell_used)
        BELL_SET(bell_used, (unsigned)(w - bell_pages) + 1);
    bell_give();
    if (!home) /* after it can be found: a queue that comes meanwhile waits, and is seen again */
        add_queues(w);
    __atomic_fetch_add(&pages_in, 1, __ATOMIC_ACQ_REL);
    syscall(SYS_futex, &pages_in, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return true;
}

/* Why a page is left as it is, though everything for it would be there; NULL: it is not. */
static const char *left_alone(const struct devmem *driver, const struct bell_page *home, const struct st_queue *q, unsigned n)
{
    if (home) /* of another register of the page */
        return bell_same(home->driver, driver) ? NULL : "another driver has a register of its page: it rings at the device";
    if (n > 1) /* a later doorbell of one would overwrite one of another that was not seen yet */
        return "its page of doorbells is shared by several queues: they ring at the device";
    return n && !q->ring ? "its ring is not known: it rings at the device" : NULL;
}

bool doorbell_interpose(const struct devmem *driver, void *p, size_t size, uint64_t *device)
{
    enum { NAMED = 16 };
    struct st_queue q[NAMED];
    struct st_page page;
    if (!driver->ready() || !st_page_of((uintptr_t)p, &page))
        return false;
    if (!bell_mine() && !sets_up)
        pthread_mutex_init(&setting_up, NULL);
    if (!bell_set_up())
        return false;
    struct bell_page *home = NULL;
    while (bell_mine() && (home = page_by_number(page.number)) && bell_same(home->driver, driver) && !page_alive(home))
        release(home, false); /* it went with its context */
    struct st_thread *t = st_enter(ST_LAYER_DOORBELL);
    unsigned n = st_queues_of(page.number, q, NAMED);
    const char *why = left_alone(driver, home, q, n);
    for (unsigned i = 0; t && why && i < n && i < NAMED; i++)
        st_def_verbs_blind(q[i].object->id, why);
    if (t)
        st_leave(t, ST_LAYER_DOORBELL);
    bool done = t && !why && start() && interpose(driver, p, size, &page, device);
    bell_set_up_done();
    return done;
}

bool doorbell_alive(void *p)
{
    bool alive = false;
    for (unsigned i = 0; bell_mine() && i < bell_used; i++)
        if (bell_pages[i].reg == p)
            alive = page_alive(&bell_pages[i]);
    return alive;
}

void doorbell_release(void *p, bool alive)
{
    if (!bell_mine() || !bell_set_up())
        return;
    for (unsigned i = 0; i < bell_used; i++)
        if (bell_pages[i].reg == p)
            release(&bell_pages[i], alive);
    bell_set_up_done();
}
