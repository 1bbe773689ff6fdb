/* distribution.h - what distributions need in one call: log-probabilities of chosen classes
 * with their gradient, and the check of parameters that names a bad row. */
#ifndef RLE_NN_DISTRIBUTION_H
#define RLE_NN_DISTRIBUTION_H

#include "tensor/tensor.h"

/* log p(action) for x[..., C], which holds probabilities (that need not sum to 1) or, with
 * `logits`, unnormalized log-probabilities. action: integers from 0, of a shape that
 * broadcasts with x's without its last dimension; *out has the shape both broadcast to.
 * Probabilities are kept one epsilon away from 0 and 1, as PyTorch does, so the result is
 * finite. Recorded for autograd. A row's result does not depend on the other rows.
 * OUT_OF_RANGE names an action that is no class; INVALID_ARGUMENT for shapes and types. */
rle_status rle_categorical_log_prob(rle_tensor *x, bool logits, rle_tensor *action,
                                    rle_tensor **out);

/* What a row may hold. */
typedef enum {
    RLE_ROWS_FINITE,      /* numbers */
    RLE_ROWS_NONNEGATIVE, /* numbers >= 0 */
    RLE_ROWS_PROBS,       /* numbers >= 0, not all 0 */
    RLE_ROWS_LOGITS       /* numbers or -inf, not all -inf */
} rle_rows_kind;

/* INVALID_ARGUMENT naming the first row of x[..., C] (counted from 1) that breaks the rule,
 * with its values. `what`: "Categorical: probs". Rows that are all 0 pass, also with
 * RLE_ROWS_PROBS: to see them takes the second function, which looks at every row. */
rle_status rle_check_rows(const char *what, rle_rows_kind kind, rle_tensor *x);
rle_status rle_name_bad_row(const char *what, rle_rows_kind kind, rle_tensor *x);

#endif
