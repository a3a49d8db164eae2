/* A team: threads that take the same rows through the steps together.

   Each does what is computed value by value for rows of its own, and columns of every product for all rows; so a large
   matrix is divided among the caches of the cores, and rows may be fewer than threads. They meet before a product, when
   all rows of what it reads are there, and behind it. */

#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>

struct team {
    atomic_int arrived;
    atomic_long meetings;
};
static _Thread_local struct team *mine = 0; /* of this thread, while it works in one */
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

/* go on when all have come */
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

/* a piece of work, all of it alone or one's share of it among a team */
static void divided(columns work, const void *job, long count) {
    if (!mine) {
        work(job, 0, count);
        return;
    }
    meet();
    work(job, count * share / shares, count * (share + 1) / shares);
    meet();
}
