/* Products of rows with an invariant matrix, for one type of numbers.
   REAL, WIDE (numbers in a vector), ROWS (rows in a tile) and NAME (names for this type) are defined in front of it. */

typedef REAL NAME(vec) __attribute__((vector_size(WIDE * sizeof(REAL)), aligned(sizeof(REAL))));
#undef PANEL
#undef TILE
#define PANEL (2 * WIDE)

/* a tile of rows by two vectors stays in registers while the inner axis runs */

#define TILE(M)                                                                                              \
    static void NAME(tile_##M)(long inner, const REAL *restrict a, long stride, const REAL *restrict b,           \
                         REAL *restrict out, long out_stride) {                                             \
        NAME(vec) left[M], right[M];                                                                              \
        for (int i = 0; i < M; i++) left[i] = right[i] = (NAME(vec)){0};                                          \
        for (long k = 0; k < inner; k++) {                                                                  \
            NAME(vec) b0 = *(const NAME(vec) *)(b + k * PANEL), b1 = *(const NAME(vec) *)(b + k * PANEL + WIDE);              \
            _Pragma("GCC unroll 16") for (int i = 0; i < M; i++) {                                          \
                REAL value = a[i * stride + k];                                                             \
                left[i] += value * b0;                                                                      \
                right[i] += value * b1;                                                                     \
            }                                                                                               \
        }                                                                                                   \
        for (int i = 0; i < M; i++) {                                                                       \
            *(NAME(vec) *)(out + i * out_stride) = left[i];                                                       \
            *(NAME(vec) *)(out + i * out_stride + WIDE) = right[i];                                               \
        }                                                                                                   \
    }
TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#if ROWS > 6
TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif

/* rows of a times one packed matrix: panels outside, so that each is read once for all rows */
void NAME(product)(long rows, long inner, long outer, const REAL *a, long stride, const REAL *b, REAL *out,
                    long out_stride) {
    long tiles = (rows + ROWS - 1) / ROWS;
    for (long column = 0; column < outer; column += PANEL, b += inner * PANEL) {
        for (long tile = 0, row = 0; tile < tiles; tile++) {
            long count = (rows - row + tiles - tile - 1) / (tiles - tile);
            const REAL *from = a + row * stride;
            REAL *to = out + row * out_stride + column;
            switch (count) {
                case 1: NAME(tile_1)(inner, from, stride, b, to, out_stride); break;
                case 2: NAME(tile_2)(inner, from, stride, b, to, out_stride); break;
                case 3: NAME(tile_3)(inner, from, stride, b, to, out_stride); break;
                case 4: NAME(tile_4)(inner, from, stride, b, to, out_stride); break;
                case 5: NAME(tile_5)(inner, from, stride, b, to, out_stride); break;
                case 6: NAME(tile_6)(inner, from, stride, b, to, out_stride); break;
#if ROWS > 6
                case 7: NAME(tile_7)(inner, from, stride, b, to, out_stride); break;
                case 8: NAME(tile_8)(inner, from, stride, b, to, out_stride); break;
                case 9: NAME(tile_9)(inner, from, stride, b, to, out_stride); break;
                case 10: NAME(tile_10)(inner, from, stride, b, to, out_stride); break;
                case 11: NAME(tile_11)(inner, from, stride, b, to, out_stride); break;
                case 12: NAME(tile_12)(inner, from, stride, b, to, out_stride); break;
#endif
            }
            row += count;
        }
    }
}

/* a matrix in panels of columns, each with all of the inner axis; zeros behind the last column */
void NAME(pack)(REAL *to, const REAL *from, long inner, long outer, long along_inner, long along_outer) {
    for (long column = 0; column < outer; column += PANEL)
        for (long k = 0; k < inner; k++)
            for (long j = 0; j < PANEL; j++)
                *to++ = column + j < outer ? from[k * along_inner + (column + j) * along_outer] : 0;
}
