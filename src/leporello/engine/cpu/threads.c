/* Threads that take kernels through ranges of rows.

   Torch's own threads, where they can be had: between its operators they go on looking for work for milliseconds, and
   others would have to share the cores with them. Elsewhere, and in the child of a fork (where torch's threads are not),
   a pool of our own, made when first used. */

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

typedef void (*kernel)(void **, long, long, long, long, char *);
#define MOST 256

static pthread_mutex_t caller = PTHREAD_MUTEX_INITIALIZER; /* one call at a time uses the pool */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begin = PTHREAD_COND_INITIALIZER, end = PTHREAD_COND_INITIALIZER;
static pid_t owner = 0;
static int workers = 0;
static long round_number = 0;
static int waiting_for = 0;

struct work {
    kernel run;
    void **given;
    long rows, steps, batch, scratch;
    int parts, failed;
    int (*number)(void); /* of the calling thread, among torch's */
    struct team *team;   /* null where each thread has rows of its own */
};
static struct work *task; /* of the pool */

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

static void part(struct work *own, int index) {
    if (index >= own->parts) return;
    if (own->team && index) {
        help(own->team, index);
        return;
    }
    if (own->team) {
        char *scratch = scratch_of(own->scratch);
        leading = own->team;
        if (!scratch) own->failed = 1;
        else own->run(own->given, 0, own->rows, own->steps, own->batch, scratch);
        leading = 0;
        dismissed(own->team);
        return;
    }
    long first = own->rows * index / own->parts, last = own->rows * (index + 1) / own->parts;
    char *scratch = scratch_of(own->scratch);
    if (!scratch) own->failed = 1;
    else if (first < last) own->run(own->given, first, last, own->steps, own->batch, scratch);
}

static void part_of_torch(void *argument) {
    struct work *own = argument;
    part(own, own->number());
}

struct beginning {
    int index;
    long seen; /* rounds before this worker was made */
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
        pthread_mutex_unlock(&lock);
        part(task, index);
        pthread_mutex_lock(&lock);
        if (--waiting_for == 0) pthread_cond_signal(&end);
    }
    return 0;
}

static void renewed_after_fork(void) { /* threads do not live on in a child */
    pthread_mutex_init(&caller, 0);
    pthread_mutex_init(&lock, 0);
    pthread_cond_init(&begin, 0);
    pthread_cond_init(&end, 0);
    workers = 0;
    round_number = 0;
    waiting_for = 0;
}

/* what a call is told: words, with the kernel's pointers behind them */
struct call {
    kernel run;
    long rows, steps, scratch, threads;
    long columns; /* whether threads without rows may help with large products */
    void (*torch)(void (*)(void *), void *, unsigned, unsigned); /* starts its threads; null for a pool of our own */
    int (*number)(void);                                          /* and numbers them */
    void *given[];
};

int run_parallel(struct call *call) {
    const long rows = call->rows;
    int threads = call->threads > MOST ? MOST : (int)call->threads;
    struct team team = {.threads = threads};
    int together = call->columns && rows < threads;
    if (threads > rows && !together) threads = (int)rows;
    struct work own = {call->run, call->given, rows,         call->steps,           rows,
                       call->scratch, threads, 0, call->number, together ? &team : 0};
    if (owner == 0) {
        pthread_atfork(0, 0, renewed_after_fork);
        owner = getpid();
    }
    if (threads <= 1) {
        own.parts = 1;
        part(&own, 0);
        return own.failed;
    }
    if (call->torch && owner == getpid()) {
        call->torch(part_of_torch, &own, threads, 0);
        return own.failed;
    }
    pthread_mutex_lock(&caller);
    while (workers < threads - 1) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        struct beginning *given_to = malloc(sizeof *given_to);
        if (!given_to) break;
        given_to->index = workers + 1;
        given_to->seen = round_number;
        int failed = pthread_create(&thread, &attributes, work, given_to);
        pthread_attr_destroy(&attributes);
        if (failed) {
            free(given_to);
            break;
        }
        workers++;
    }
    pthread_mutex_lock(&lock);
    own.parts = team.threads = workers + 1 < threads ? workers + 1 : threads;
    task = &own;
    waiting_for = workers;
    round_number++;
    pthread_cond_broadcast(&begin);
    pthread_mutex_unlock(&lock);
    part(&own, 0);
    pthread_mutex_lock(&lock);
    while (waiting_for) pthread_cond_wait(&end, &lock);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&caller);
    return own.failed;
}
