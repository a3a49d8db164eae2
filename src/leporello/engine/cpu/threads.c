/* A pool of threads that take kernels through ranges of rows. Made when first used, and anew after a fork. */

#define _GNU_SOURCE
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

static struct {
    kernel run;
    void **given;
    long rows, steps, batch, scratch;
    int parts;
} task;

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

static void part(int index) {
    if (index >= task.parts) return;
    long first = task.rows * index / task.parts, last = task.rows * (index + 1) / task.parts;
    char *scratch = scratch_of(task.scratch);
    if (first < last && scratch) task.run(task.given, first, last, task.steps, task.batch, scratch);
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
        part(index);
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

int run_parallel(kernel run, void **given, long rows, long steps, long batch, long scratch, int threads) {
    if (threads > MOST) threads = MOST;
    if (threads > rows) threads = (int)rows;
    if (threads <= 1) {
        char *own = scratch_of(scratch);
        if (!own) return 1;
        run(given, 0, rows, steps, batch, own);
        return 0;
    }
    if (owner == 0) {
        pthread_atfork(0, 0, renewed_after_fork);
        owner = getpid();
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
    task.run = run, task.given = given, task.rows = rows, task.steps = steps, task.batch = batch, task.scratch = scratch;
    task.parts = workers + 1 < threads ? workers + 1 : threads;
    waiting_for = workers;
    round_number++;
    pthread_cond_broadcast(&begin);
    pthread_mutex_unlock(&lock);
    part(0);
    pthread_mutex_lock(&lock);
    while (waiting_for) pthread_cond_wait(&end, &lock);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&caller);
    return 0;
}
