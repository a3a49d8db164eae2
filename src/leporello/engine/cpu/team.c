/* A team: one thread takes rows through the steps, the others help it with the columns of each large product.

   For fewer rows than threads. The helpers wait in a loop that looks for the next product. */

#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>

typedef void (*columns)(const void *job, long first, long last);

struct team {
    atomic_long number;  /* of the product, counted up by the leader; -1 at the end */
    atomic_int finished; /* helpers that are done with it */
    int threads;
    columns work;
    const void *job;
    long count; /* what is divided */
};
static _Thread_local struct team *leading = 0;

static inline void wait_a_little(long *turns) {
    if (++*turns > 2000) {
        sched_yield();
        return;
    }
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void own_share(struct team *team, int index) {
    team->work(team->job, team->count * index / team->threads, team->count * (index + 1) / team->threads);
}

/* the leader's side: divide a piece of work */
static void divided(struct team *team, columns work, const void *job, long count) {
    team->work = work, team->job = job, team->count = count;
    atomic_store_explicit(&team->finished, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&team->number, 1, memory_order_release);
    own_share(team, 0);
    long turns = 0;
    while (atomic_load_explicit(&team->finished, memory_order_acquire) < team->threads - 1) wait_a_little(&turns);
}

static void dismissed(struct team *team) { atomic_store_explicit(&team->number, -1, memory_order_release); }

/* the helpers' side, until the leader is done */
static void help(struct team *team, int index) {
    long seen = 0, turns = 0;
    for (;;) {
        long number = atomic_load_explicit(&team->number, memory_order_acquire);
        if (number == -1) return;
        if (number == seen) {
            wait_a_little(&turns);
            continue;
        }
        seen = number, turns = 0;
        own_share(team, index);
        atomic_fetch_add_explicit(&team->finished, 1, memory_order_release);
    }
}
