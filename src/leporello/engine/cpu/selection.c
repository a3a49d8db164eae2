/* The positions of the first elements of a row in their order, as torch.topk and torch.sort give them on a CPU: also
   which of equal elements come first. torch selects with nth_element and sort, or with partial_sort where it wants few
   of many; of equal elements the result depends on every exchange these make, so the same exchanges are made here. */

typedef struct {
    double value;
    int64_t place;
} ranked;

/* NaN counts as the largest. */
INLINE int comes_before(ranked a, ranked b, int largest) {
    const int a_is = a.value != a.value, b_is = b.value != b.value;
    return largest ? (a_is && !b_is) || a.value > b.value : (!a_is && b_is) || a.value < b.value;
}

INLINE void exchange(ranked *a, ranked *b) {
    const ranked kept = *a;
    *a = *b;
    *b = kept;
}

/* Fill a hole in a heap of `count` elements: from the bottom, where the hole sinks to first. */
static void fill_hole(ranked *heap, long hole, long count, ranked value, int largest) {
    const long top = hole;
    long child = hole;
    while (child < (count - 1) / 2) {
        child = 2 * (child + 1);
        if (comes_before(heap[child], heap[child - 1], largest)) child--;
        heap[hole] = heap[child];
        hole = child;
    }
    if (count % 2 == 0 && child == (count - 2) / 2) {
        child = 2 * child + 1;
        heap[hole] = heap[child];
        hole = child;
    }
    for (long parent = (hole - 1) / 2; hole > top && comes_before(heap[parent], value, largest);
         parent = (hole - 1) / 2) {
        heap[hole] = heap[parent];
        hole = parent;
    }
    heap[hole] = value;
}

/* A heap of the first `few` of all elements, its last one at the top. */
static void select_heap(ranked *all, long few, long count, int largest) {
    for (long at = few / 2 - 1; at >= 0; at--) fill_hole(all, at, few, all[at], largest);
    for (long at = few; at < count; at++)
        if (comes_before(all[at], all[0], largest)) {
            const ranked value = all[at];
            all[at] = all[0];
            fill_hole(all, 0, few, value, largest);
        }
}

static void sort_heap(ranked *all, long count, int largest) {
    for (long last = count - 1; last > 0; last--) {
        const ranked value = all[last];
        all[last] = all[0];
        fill_hole(all, 0, last, value, largest);
    }
}

static void sort_by_insertion(ranked *all, long first, long last, int largest) {
    for (long at = first + 1; at < last; at++) {
        const ranked value = all[at];
        long to = at;
        for (; to > first && comes_before(value, all[to - 1], largest); to--) all[to] = all[to - 1];
        all[to] = value;
    }
}

/* Part the elements by the median of three: those before the returned place come before those from it on. */
static long part(ranked *all, long first, long last, int largest) {
    ranked *a = all + first + 1, *b = all + first + (last - first) / 2, *c = all + last - 1, *median;
    if (comes_before(*a, *b, largest))
        median = comes_before(*b, *c, largest) ? b : comes_before(*a, *c, largest) ? c : a;
    else
        median = comes_before(*a, *c, largest) ? a : comes_before(*b, *c, largest) ? c : b;
    const long pivot = first;
    exchange(all + pivot, median);
    for (first++;; first++) {
        while (comes_before(all[first], all[pivot], largest)) first++;
        for (last--; comes_before(all[pivot], all[last], largest);) last--;
        if (first >= last) return first;
        exchange(all + first, all + last);
    }
}

static long most_parts(long count) {
    long parts = 0;
    for (; count > 1; count /= 2) parts += 2;
    return parts;
}

static void sort_roughly(ranked *all, long first, long last, long parts, int largest) {
    while (last - first > 16) {
        if (parts-- == 0) {
            select_heap(all + first, last - first, last - first, largest);
            sort_heap(all + first, last - first, largest);
            return;
        }
        const long cut = part(all, first, last, largest);
        sort_roughly(all, cut, last, parts, largest);
        last = cut;
    }
}

INLINE void sort_all(ranked *all, long count, int largest) {
    sort_roughly(all, 0, count, most_parts(count), largest);
    sort_by_insertion(all, 0, count, largest);
}

INLINE void select_first(ranked *all, long count, long few, int largest) {
    if (few * 64 <= count) {
        select_heap(all, few, count, largest);
        sort_heap(all, few, largest);
        return;
    }
    long first = 0, last = count, parts = most_parts(count);
    while (last - first > 3 && parts-- > 0) {
        const long cut = part(all, first, last, largest);
        if (cut < few)
            first = cut;
        else
            last = cut;
    }
    if (last - first > 3) {
        select_heap(all + first, few - first, last - first, largest);
        exchange(all + first, all + few - 1);
    } else {
        sort_by_insertion(all, first, last, largest);
    }
    sort_all(all, few - 1, largest);
}
