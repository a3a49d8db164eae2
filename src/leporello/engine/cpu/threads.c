/* Threads among which the work of a call is divided, in units: ranges of rows, or shares of a sum or product.

   They are torch's own OpenMP threads, where available: between operators these spin for milliseconds, and other threads
   would compete with them for the cores. Each takes one unit, or a team of them takes all rows together.

   Where other programs use the cores too, a thread that spins loses its time to them, and a region of OpenMP ends when
   its slowest thread has been given a core. So a call that has lost time that way is followed by calls on a pool of our
   own: its threads sleep while they wait, whoever is running takes the next unit, and the caller waits only for units
   that another thread is in the middle of. The pool also serves where torch's threads do not exist: in the child of a
   fork, and without OpenMP. */

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* A kernel runs the rows from first to last (exclusive); of a team's work this thread does part `share` of `shares`. */
typedef void (*kernel)(void **, long first, long last, long steps, long batch, char *scratch, long share, long shares);
#define MOST 256
#define FINER 2 /* units for each thread of the pool, of at least FEWEST_ROWS rows */
#define FEWEST_ROWS 4
#define POOL_TIME 200000000L /* nanoseconds for which the pool is used after a call that has lost time */

/* The arguments of `run_parallel`: words, followed by the kernel's pointers. */
struct call {
    kernel run;
    long rows, steps, scratch, threads;
    long together; /* rows that a team takes through the steps at a time; 0 where each thread has its own rows */
    long phases;   /* of work that is divided into shares, all of which end before the next phase; 0: into rows */
    long fixed;    /* as many ranges of rows as threads, in the pool too: sums over rows then have the same bits */
    long border;   /* rows from here on are read by the pointers `later`, if there are any */
    void **later;
    void (*torch)(void (*)(void *), void *, unsigned, unsigned); /* starts torch's threads; null for our own pool */
    int (*number)(void);                                          /* the index of the calling thread among them */
    int (*count)(void); /* the threads that were started, sometimes fewer than requested */
    void *given[];
};

struct work {
    struct call *call;
    long units, phase, threads;
    atomic_int failed; /* out of memory */
    struct team team;
    char *scratch;                   /* scratch memory of the team, or of all shares */
    atomic_char taken[MOST * FINER]; /* units, in the pool */
    long worked[MOST];               /* nanoseconds of a processor that each of torch's threads has used */
};

static pthread_mutex_t caller = PTHREAD_MUTEX_INITIALIZER; /* held by the call that uses the pool */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begin = PTHREAD_COND_INITIALIZER, end = PTHREAD_COND_INITIALIZER;
static int workers = 0;
static int active = 0;    /* workers that may touch the task */
static struct work *task; /* what the pool is working on; null: nothing */
static long round_number = 0;
long most_lost = 300000L; /* nanoseconds, and a quarter of its time: what a call may lose to other programs */
atomic_long pool_until = 0; /* the time until which calls use the pool, though torch's threads exist */

static _Thread_local char *memory = 0;
static _Thread_local long memory_size = 0;

static char *scratch_of(long size) {
    if (size > memory_size) {
        free(memory);
        memory = malloc(size);
        memory_size = memory ? size : 0;
    }
    return memory;
}

static long nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

/* Let the next calls use the pool if one has lost much of its time: the processors were given to others. */
static void judge(long wall, long worked) {
    if (wall - worked > most_lost && wall - worked > wall / 4)
        atomic_store_explicit(&pool_until, nanoseconds(CLOCK_MONOTONIC) + POOL_TIME, memory_order_relaxed);
}

/* Run the kernel for a range of rows: those below and those above the border by their own pointers. */
static void rows(const struct call *call, long first, long last, char *scratch, long part, long parts) {
    void **given = (void **)call->given;
    long border = !call->later || call->border > last ? last : call->border < first ? first : call->border;
    if (first < border) call->run(given, first, border, call->steps, call->rows, scratch, part, parts);
    if (mine && first < border && border < last) meet();
    if (border < last) call->run(call->later, border, last, call->steps, call->rows, scratch, part, parts);
}

/* One unit of the work: a range of rows through all steps, or a share of a phase. */
static void unit(struct work *own, long index) {
    const struct call *call = own->call;
    if (call->phases) {
        call->run((void **)call->given, 0, call->rows, own->phase, call->rows, own->scratch, index, own->units);
        return;
    }
    const long first = call->rows * index / own->units, last = call->rows * (index + 1) / own->units;
    char *scratch = first < last ? scratch_of(call->scratch) : 0;
    if (scratch) rows(call, first, last, scratch, 0, 1);
    else if (first < last) own->failed = 1;
}

/* ---- torch's threads */

/* All rows, one block after another, together with the other threads of a team. */
static void in_team(struct work *own, int index, int parts) {
    const struct call *call = own->call;
    const long blocks = (call->rows + call->together - 1) / call->together;
    mine = &own->team, share = index, shares = parts;
    for (long block = 0, at = 0; block < blocks; block++) {
        const long next = at + (call->rows - at + blocks - block - 1) / (blocks - block);
        meet();
        rows(call, at, next, own->scratch, share, shares);
        at = next;
    }
    mine = 0;
}

static void part_of_torch(void *argument) {
    struct work *own = argument;
    const int index = own->call->number(), came = own->call->count();
    const long since = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
    if (own->call->together && came > 1) in_team(own, index, came);
    else
        for (long next = index; next < own->units; next += came) unit(own, next);
    own->worked[index] = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - since;
}

static void by_torch(struct work *own) {
    const long since = nanoseconds(CLOCK_MONOTONIC);
    long worked = 0;
    for (long index = 0; index < own->threads; index++) own->worked[index] = 0;
    own->call->torch(part_of_torch, own, (unsigned)own->threads, 0);
    for (long index = 0; index < own->threads; index++) worked = own->worked[index] > worked ? own->worked[index] : worked;
    judge(nanoseconds(CLOCK_MONOTONIC) - since, worked);
}

/* ---- the pool */

/* Run units that nobody has taken, the own ones first. */
static void take(struct work *own, long index) {
    for (long i = 0; i < own->units; i++) {
        const long next = (own->units * index / own->threads + i) % own->units;
        if (!atomic_exchange_explicit(own->taken + next, 1, memory_order_relaxed)) unit(own, next);
    }
}

struct beginning {
    int index;
    long seen; /* rounds before this worker was created */
};

static void *work(void *argument) {
    struct beginning *given = argument;
    int index = given->index;
    long seen = given->seen;
    free(given);
    pthread_mutex_lock(&lock);
    for (;;) {
        while (round_number == seen || !task || index >= task->threads) {
            seen = round_number;
            pthread_cond_wait(&begin, &lock);
        }
        seen = round_number;
        struct work *own = task;
        active++;
        pthread_mutex_unlock(&lock);
        take(own, index);
        pthread_mutex_lock(&lock);
        if (--active == 0) pthread_cond_signal(&end);
    }
    return 0;
}

static void renewed_after_fork(void) { /* the child of a fork has no worker threads */
    pthread_mutex_init(&caller, 0);
    pthread_mutex_init(&lock, 0);
    pthread_cond_init(&begin, 0);
    pthread_cond_init(&end, 0);
    workers = 0;
    active = 0;
    task = 0;
    round_number = 0;
}

__attribute__((constructor)) static void loaded(void) { pthread_atfork(0, 0, renewed_after_fork); }

/* Start workers until there are as many as wanted, or no more can be started. */
static void hire(int wanted) {
    while (workers < wanted) {
        pthread_t thread;
        pthread_attr_t attributes;
        struct beginning *given = malloc(sizeof *given);
        if (!given) break;
        given->index = workers + 1;
        given->seen = round_number;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        int failed = pthread_create(&thread, &attributes, work, given);
        pthread_attr_destroy(&attributes);
        if (failed) {
            free(given);
            break;
        }
        workers++;
    }
}

static void by_pool(struct work *own) {
    for (long next = 0; next < own->units; next++) own->taken[next] = 0;
    if (pthread_mutex_trylock(&caller)) { /* another call uses it */
        take(own, 0);
        return;
    }
    pthread_mutex_lock(&lock);
    hire((int)own->threads - 1);
    task = own;
    round_number++;
    pthread_cond_broadcast(&begin);
    pthread_mutex_unlock(&lock);
    const long since = nanoseconds(CLOCK_MONOTONIC), used = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
    take(own, 0);
    judge(nanoseconds(CLOCK_MONOTONIC) - since, nanoseconds(CLOCK_THREAD_CPUTIME_ID) - used);
    pthread_mutex_lock(&lock);
    task = 0; /* a worker that comes now finds nothing to do */
    while (active) pthread_cond_wait(&end, &lock);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&caller);
}

int run_parallel(struct call *call) {
    int threads = call->threads > MOST ? MOST : (int)call->threads;
    const long until = atomic_load_explicit(&pool_until, memory_order_relaxed);
    const int pooled = !call->torch || (until && nanoseconds(CLOCK_MONOTONIC) < until);
    const int in_rows = !call->phases && (pooled || !call->together);
    if (in_rows && threads > call->rows) threads = (int)call->rows;
    if (threads < 1) threads = 1;
    struct work own;
    own.call = call, own.units = own.threads = threads, own.phase = 0, own.failed = 0;
    own.team = (struct team){0};
    if (pooled && in_rows && threads > 1 && !call->fixed) {
        const long finer = call->rows / FEWEST_ROWS < FINER * threads ? call->rows / FEWEST_ROWS : FINER * threads;
        if (finer > threads) own.units = finer;
    }
    if (!in_rows) {
        own.scratch = scratch_of(call->scratch);
        if (!own.scratch) return 1;
    }
    for (; own.phase < (call->phases ? call->phases : 1); own.phase++) {
        if (threads <= 1) unit(&own, 0);
        else if (pooled) by_pool(&own);
        else by_torch(&own);
    }
    return own.failed;
}
