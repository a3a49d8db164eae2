/* Threads that take kernels through ranges of rows.

   They are torch's own OpenMP threads, where available: between operators these spin for milliseconds, and other threads
   would compete with them for the cores. Elsewhere, and in the child of a fork (where torch's threads do not exist), it
   is a pool of our own, created on first use. */

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* A kernel runs the rows from first to last (exclusive); of a team's work this thread does part `share` of `shares`. */
typedef void (*kernel)(void **, long first, long last, long steps, long batch, char *scratch, long share, long shares);
#define MOST 256

/* The arguments of `run_parallel`: words, followed by the kernel's pointers. */
struct call {
    kernel run;
    long rows, steps, scratch, threads;
    long together; /* rows that a team takes through the steps at a time; 0 where each thread has its own rows */
    void (*torch)(void (*)(void *), void *, unsigned, unsigned); /* starts torch's threads; null for our own pool */
    int (*number)(void);                                          /* the index of the calling thread among them */
    int (*count)(void); /* the threads that were started, sometimes fewer than requested */
    void *given[];
};

struct work {
    struct call *call;
    int parts;         /* at most as many threads take part */
    atomic_int failed; /* out of memory */
    struct team team;
    char *scratch; /* scratch memory of the team */
};

static pthread_mutex_t caller = PTHREAD_MUTEX_INITIALIZER; /* held by the call that uses the pool */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begin = PTHREAD_COND_INITIALIZER, end = PTHREAD_COND_INITIALIZER;
static int workers = 0;
static long round_number = 0;
static int waiting_for = 0;
static struct work *task; /* what the pool is working on */

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

/* All rows, one block after another, together with the other threads of a team. */
static void in_team(struct work *own, int index, int parts) {
    const struct call *call = own->call;
    const long blocks = (call->rows + call->together - 1) / call->together;
    mine = &own->team, share = index, shares = parts;
    for (long block = 0, at = 0; block < blocks; block++) {
        const long next = at + (call->rows - at + blocks - block - 1) / (blocks - block);
        meet();
        call->run((void **)call->given, at, next, call->steps, call->rows, own->scratch, share, shares);
        at = next;
    }
    mine = 0;
}

static void part(struct work *own, int index, int parts) {
    const struct call *call = own->call;
    if (index >= parts) return;
    if (call->together && parts > 1) {
        in_team(own, index, parts);
        return;
    }
    long first = call->rows * index / parts, last = call->rows * (index + 1) / parts;
    char *scratch = first < last ? scratch_of(call->scratch) : 0;
    if (scratch) call->run((void **)call->given, first, last, call->steps, call->rows, scratch, 0, 1);
    else if (first < last) own->failed = 1;
}

static void part_of_torch(void *argument) {
    struct work *own = argument;
    int came = own->call->count(), parts = came < own->parts ? came : own->parts;
    part(own, own->call->number(), parts);
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
        while (round_number == seen) pthread_cond_wait(&begin, &lock);
        seen = round_number;
        struct work *own = task;
        pthread_mutex_unlock(&lock);
        part(own, index, own->parts);
        pthread_mutex_lock(&lock);
        if (--waiting_for == 0) pthread_cond_signal(&end);
    }
    return 0;
}

static void renewed_after_fork(void) { /* the child of a fork has no worker threads */
    pthread_mutex_init(&caller, 0);
    pthread_mutex_init(&lock, 0);
    pthread_cond_init(&begin, 0);
    pthread_cond_init(&end, 0);
    workers = 0;
    round_number = 0;
    waiting_for = 0;
}

__attribute__((constructor)) static void loaded(void) { pthread_atfork(0, 0, renewed_after_fork); }

/* Start workers until there are as many as wanted; returns how many of those there are. */
static int hired(int wanted) {
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
    return workers < wanted ? workers : wanted;
}

int run_parallel(struct call *call) {
    int threads = call->threads > MOST ? MOST : (int)call->threads;
    if (!call->together && threads > call->rows) threads = (int)call->rows;
    struct work own = {.call = call, .parts = threads};
    if (threads <= 1) {
        part(&own, 0, 1);
        return own.failed;
    }
    if (call->together) {
        own.scratch = scratch_of(call->scratch);
        if (!own.scratch) return 1;
    }
    if (call->torch) {
        call->torch(part_of_torch, &own, threads, 0);
        return own.failed;
    }
    pthread_mutex_lock(&caller);
    own.parts = hired(threads - 1) + 1;
    pthread_mutex_lock(&lock);
    task = &own;
    waiting_for = workers;
    round_number++;
    pthread_cond_broadcast(&begin);
    pthread_mutex_unlock(&lock);
    part(&own, 0, own.parts);
    pthread_mutex_lock(&lock);
    while (waiting_for) pthread_cond_wait(&end, &lock);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&caller);
    return own.failed;
}
