/* A team: threads that take the same rows through the steps together.

   Each thread computes pointwise values for its share of the rows, and its share of the columns of every product for all
   rows. So a large matrix is divided among the caches of the cores, and there may be fewer rows than threads. There is a
   barrier before each product, so that all rows of its input are complete, and one after it. */

#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

struct team {
    atomic_int arrived;
    atomic_long meetings;
};
static _Thread_local struct team *mine = 0; /* the team of this thread, null outside of one */
static _Thread_local int share = 0, shares = 1;

static inline void wait_a_little(long *turns) {
    if (++*turns > 2000) {
        sched_yield();
        return;
    }
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* a barrier: returns when all threads of the team have arrived */
static void meet(void) {
    struct team *team = mine;
    const long seen = atomic_load_explicit(&team->meetings, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) == shares - 1) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&team->meetings, seen + 1, memory_order_release);
        return;
    }
    long turns = 0;
    while (atomic_load_explicit(&team->meetings, memory_order_acquire) == seen) wait_a_little(&turns);
}

typedef void (*columns)(const void *job, long first, long last);

/* Work on `count` columns: all of them, or in a team this thread's share between two barriers. */
static void divided(columns work, const void *job, long count) {
    if (!mine) {
        work(job, 0, count);
        return;
    }
    meet();
    work(job, count * share / shares, count * (share + 1) / shares);
    meet();
}
