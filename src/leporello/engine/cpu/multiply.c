/* Rows of a whole window times an invariant matrix, for one type of numbers; included after products.c.

   In the first phase all threads pack the matrix into tiles (panels in the code), in the second they divide the rows. Each multiplies a strip of
   its rows with all tiles in turn, so that the strip stays in the innermost cache and the tiles in the next one. */

#define STRIP 96 /* rows of a strip: a multiple of the 12 or 6 rows of a register tile */

typedef struct {
    const REAL *a, *matrix, *bias; /* no bias: null */
    REAL *panels, *out;
    long inner, outer, a_stride, along_inner, along_outer, out_stride;
} NAME(multiplied);

/* The last packed tile, if it is padded: its product goes to scratch memory, from which the real columns are copied. */
static void NAME(last_panel)(const NAME(multiplied) *own, const REAL *a, long rows, REAL *out, REAL *aside) {
    const long whole = own->outer / PANEL, left = own->outer % PANEL;
    NAME(job) job = {rows, own->inner, PANEL, own->a_stride, PANEL, a, own->panels + whole * own->inner * PANEL, aside, 0};
    NAME(panels)(&job, 0, 1);
    for (long row = 0; row < rows; row++)
        memcpy(out + row * own->out_stride + whole * PANEL, aside + row * PANEL, left * sizeof(REAL));
}

/* given: the operands (a `multiplied`), and bytes of scratch for each thread */
void NAME(multiply)(void **given, long begin, long end, long phase, long batch, char *scratch, long share, long shares) {
    (void)batch;
    const NAME(multiplied) *own = given[0];
    REAL *aside = (REAL *)(((uintptr_t)scratch + share * (long)given[1] + 63) & ~(uintptr_t)63);
    const long panels = (own->outer + PANEL - 1) / PANEL;
    const long first = panels * share / shares, last = panels * (share + 1) / shares, column = first * PANEL;
    const long columns = (last * PANEL < own->outer ? last * PANEL : own->outer) - column;
    if (!phase && columns > 0)
        NAME(pack_one)
        (own->panels + column * own->inner, own->matrix + column * own->along_outer, own->inner, columns,
         own->along_inner, own->along_outer);
    if (!phase) return;
    const long from = begin + (end - begin) * share / shares, to = begin + (end - begin) * (share + 1) / shares;
    for (long row = from; row < to; row += STRIP) {
        const long rows = to - row < STRIP ? to - row : STRIP;
        const REAL *a = own->a + row * own->a_stride;
        REAL *out = own->out + row * own->out_stride;
        NAME(job) job = {rows, own->inner, own->outer, own->a_stride, own->out_stride, a, own->panels, out, 0};
        NAME(panels)(&job, 0, own->outer / PANEL);
        if (own->outer % PANEL) NAME(last_panel)(own, a, rows, out, aside);
        if (own->bias)
            for (long i = 0; i < rows; i++)
                for (long n = 0; n < own->outer; n++) out[i * own->out_stride + n] += own->bias[n];
    }
}

/* bytes of scratch for each thread */
long NAME(multiply_scratch)(void) { return STRIP * PANEL * sizeof(REAL) + 64; }
#undef STRIP
