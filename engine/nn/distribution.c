/* distribution.c - log-probabilities of classes as one operation with a gradient.
 *
 * With s the sum of a row's probabilities and a the action:
 *   probabilities: log(p_a / s);          d/dp_j = [j = a] / p_a - 1 / s
 *   logits:        l_a - logsumexp(l);    d/dl_j = [j = a] - softmax(l)_j
 *
 * Logits are made of the device's operations, which treat rows alike whatever the batch,
 * called on arrays within few tensors. Probabilities have an operation of their own:
 * acting asks for one row at a time, and there every further call costs more than the
 * arithmetic. */
#include "nn/distribution.h"

#include <math.h>
#include <stdio.h>

#include "autograd/autograd.h"
#include "base/mem.h"
#include "tensor/ops.h"

/* Rows of the scratch [COLUMNS, rows]: what log_share keeps; of logits the logsumexp and
 * the chosen entries. */
enum { TOTAL, PICKED, COLUMNS = 3 };

/* What backward needs. */
typedef struct log_prob {
    rle_custom custom;
    bool logits;
    int64_t rows, classes;
    rle_tensor *x;       /* [..., classes], contiguous, broadcast with the actions */
    rle_tensor *index;   /* i64, one a row, contiguous */
    rle_tensor *scratch; /* NULL for one row on the CPU: then it is `one` */
    double one[COLUMNS];
    int ndim;            /* x as it came, for the shape of its gradient */
    int64_t shape[RLE_MAX_DIMS];
    uint32_t version;    /* of x's storage, to see a change in place */
} log_prob;

static void log_prob_free(rle_custom *custom)
{
    log_prob *n = (log_prob *)custom;
    rle_tensor_release(n->x);
    rle_tensor_release(n->index);
    rle_tensor_release(n->scratch);
    rle_free(n);
}

/* Contiguous data as [rows, columns]. Only the fields that count are written: arrays are
 * large, and a call makes many. */
static void matrix(rle_array *a, void *data, rle_dtype dtype, int64_t rows, int64_t columns)
{
    a->data = data;
    a->dtype = dtype;
    a->ndim = 2;
    a->shape[0] = rows;
    a->shape[1] = columns;
    a->stride[0] = columns;
    a->stride[1] = 1;
}

/* A [rows, 1] array seen [rows, classes] wide. */
static void widen(rle_array *a, int64_t classes)
{
    a->shape[1] = classes;
    a->stride[1] = 0;
}

/* The scratch, and one of its rows as [rows, 1]. */
static void kept(const log_prob *n, rle_array *a)
{
    void *data = n->scratch ? n->scratch->a.data : (void *)n->one;
    matrix(a, data, n->x->a.dtype, COLUMNS, n->rows);
}

static void column(const log_prob *n, int which, rle_array *a)
{
    kept(n, a);
    a->data = (char *)a->data + (size_t)(which * n->rows) * rle_dtype_size(a->dtype);
    matrix(a, a->data, a->dtype, n->rows, 1);
}

static rle_status probs_gradient(const log_prob *n, const rle_array *gout,
                                 const rle_array *g)
{
    rle_device *dev = rle_tensor_device(n->x);
    rle_array all, index;
    kept(n, &all);
    matrix(&index, n->index->a.data, RLE_I64, n->rows, 1);
    return dev->ops->log_share_backward(dev, g, gout, &all, &index);
}

/* g = -gout * softmax(l), gout more at the action. */
static rle_status logits_gradient(const log_prob *n, rle_array *gout, const rle_array *g)
{
    rle_device *dev = rle_tensor_device(n->x);
    rle_array x, index, wide;
    matrix(&x, n->x->a.data, n->x->a.dtype, n->rows, n->classes);
    matrix(&index, n->index->a.data, RLE_I64, n->rows, 1);
    matrix(&wide, gout->data, gout->dtype, n->rows, 1);
    widen(&wide, n->classes);
    RLE_TRY(dev->ops->softmax(dev, false, g, &x, 1));
    RLE_TRY(dev->ops->binary(dev, RLE_BINARY_MUL, g, g, &wide));
    RLE_TRY(dev->ops->unary(dev, RLE_UNARY_NEG, g, g, 0, 0));
    return dev->ops->scatter(dev, g, 1, &index, gout, false);
}

static rle_status log_prob_backward(rle_custom *custom, rle_tensor *gout, int nin,
                                    rle_tensor **gin)
{
    (void)nin;
    log_prob *n = (log_prob *)custom;
    if (n->x->storage->version != n->version)
        return rle_fail(RLE_FAILED_PRECONDITION,
                        "log_prob: the %s were changed in place after they were used; clone "
                        "them before the change",
                        n->logits ? "logits" : "probs");
    rle_tensor *own = NULL, *g = NULL;
    rle_device *dev = rle_tensor_device(n->x);
    RLE_TRY(rle_op_clone(gout, &own));
    rle_status status = rle_tensor_new(dev, n->x->a.dtype, n->x->a.ndim, n->x->a.shape, &g);
    if (status == RLE_OK) {
        rle_array from, to;
        matrix(&from, own->a.data, own->a.dtype, n->rows, 1);
        matrix(&to, g->a.data, g->a.dtype, n->rows, n->classes);
        status = n->logits ? logits_gradient(n, &from, &to) : probs_gradient(n, &from, &to);
    }
    if (status == RLE_OK) status = rle_op_sum_to(g, n->ndim, n->shape, &gin[0]);
    rle_tensor_release(own);
    rle_tensor_release(g);
    return status;
}

/* out [rows, 1] = log(p_a / s), bounded, or l_a - logsumexp(l). */
static rle_status compute(const log_prob *n, const rle_array *out)
{
    rle_device *dev = rle_tensor_device(n->x);
    rle_array x, index, all, total, picked;
    matrix(&x, n->x->a.data, n->x->a.dtype, n->rows, n->classes);
    matrix(&index, n->index->a.data, RLE_I64, n->rows, 1);
    if (!n->logits) {
        kept(n, &all);
        rle_status status = dev->ops->log_share(dev, out, &all, &x, &index);
        if (status ==
            RLE_INVALID_ARGUMENT) /* the device names a row, we its values too */
            RLE_TRY(rle_name_bad_row("log_prob: probs", RLE_ROWS_PROBS, n->x));
        return status;
    }
    column(n, TOTAL, &total);
    column(n, PICKED, &picked);
    RLE_TRY(dev->ops->gather(dev, &picked, &x, 1, &index));
    RLE_TRY(dev->ops->reduce(dev, RLE_REDUCE_LOGSUMEXP, &total, &x, 2));
    return dev->ops->binary(dev, RLE_BINARY_SUB, out, &picked, &total);
}

/* x and action, broadcast: n->x and n->index, and the shape of the result. */
static rle_status broadcast(log_prob *n, rle_tensor *x, rle_tensor *action, int *ndim,
                            int64_t *shape)
{
    *ndim = x->a.ndim - 1;
    bool same = action->a.ndim == *ndim;
    for (int i = 0; i < *ndim; i++) {
        shape[i] = x->a.shape[i];
        same = same && action->a.shape[i] == shape[i];
    }
    rle_tensor *wide_x = NULL, *wide_index = NULL;
    if (!same) {
        rle_array batch = x->a;
        batch.ndim--;
        RLE_TRY(rle_broadcast(&batch, &action->a, ndim, shape));
        if (*ndim >= RLE_MAX_DIMS)
            return rle_fail(RLE_INVALID_ARGUMENT, "log_prob: more than %d dimensions",
                            RLE_MAX_DIMS);
        int64_t all[RLE_MAX_DIMS];
        for (int i = 0; i < *ndim; i++) all[i] = shape[i];
        all[*ndim] = n->classes;
        RLE_TRY(rle_op_expand(x, *ndim + 1, all, &wide_x));
        rle_status status = rle_op_expand(action, *ndim, shape, &wide_index);
        if (status != RLE_OK) {
            rle_tensor_release(wide_x);
            return status;
        }
    }
    rle_status status = rle_op_contiguous(wide_x ? wide_x : x, &n->x);
    rle_tensor *index = wide_index ? wide_index : action;
    if (status == RLE_OK) {
        if (index->a.dtype == RLE_I64)
            status = rle_op_contiguous(index, &n->index);
        else
            status = rle_op_to(index, rle_tensor_device(index), RLE_I64, &n->index);
    }
    rle_tensor_release(wide_x);
    rle_tensor_release(wide_index);
    n->rows = 1;
    for (int i = 0; i < *ndim; i++) n->rows *= shape[i];
    return status;
}

static rle_status forward(log_prob *n, rle_tensor *x, rle_tensor *action, rle_tensor **out)
{
    int ndim;
    int64_t shape[RLE_MAX_DIMS + 1];
    rle_device *dev = rle_tensor_device(x);
    RLE_TRY(broadcast(n, x, action, &ndim, shape));
    if (n->rows != 1 || dev->type != RLE_DEVICE_CPU)
        RLE_TRY(rle_tensor_new(dev, x->a.dtype, 2, (int64_t[]){COLUMNS, n->rows}, &n->scratch));
    rle_tensor *result;
    RLE_TRY(rle_tensor_new(dev, x->a.dtype, ndim, shape, &result));
    rle_array rows;
    matrix(&rows, result->a.data, x->a.dtype, n->rows, 1);
    rle_status status = n->rows ? compute(n, &rows) : RLE_OK;
    if (status != RLE_OK)
        rle_tensor_release(result);
    else
        *out = result;
    return status;
}

rle_status rle_categorical_log_prob(rle_tensor *x, bool logits, rle_tensor *action,
                                    rle_tensor **out)
{
    char text[128];
    if (!rle_dtype_is_float(x->a.dtype) || x->a.ndim < 1)
        return rle_fail(RLE_INVALID_ARGUMENT, "log_prob: needs floats of [..., classes], got %s",
                        rle_array_describe(&x->a, text, sizeof text));
    if (rle_dtype_is_float(action->a.dtype))
        return rle_fail(RLE_INVALID_ARGUMENT, "log_prob: actions are integers from 0, got %s",
                        rle_array_describe(&action->a, text, sizeof text));
    RLE_TRY(rle_same_device("log_prob", x, action));
    log_prob *n = rle_malloc(sizeof *n);
    if (!n) return rle_oom(sizeof *n, "log_prob");
    n->custom = (rle_custom){.name = "log_prob", .backward = log_prob_backward,
                             .free = log_prob_free};
    n->logits = logits;
    n->classes = x->a.shape[x->a.ndim - 1];
    n->x = n->index = n->scratch = NULL;
    n->ndim = x->a.ndim;
    for (int i = 0; i < n->ndim; i++) n->shape[i] = x->a.shape[i];
    rle_tensor *result = NULL;
    rle_status status = forward(n, x, action, &result);
    if (status != RLE_OK) {
        log_prob_free(&n->custom);
        return status;
    }
    n->version = n->x->storage->version;
    status = rle_record_custom(&n->custom, &x, 1, result);
    if (status != RLE_OK)
        rle_tensor_release(result);
    else
        *out = result;
    return status;
}

/* ---- the check of rows ---- */

static bool row_is_bad(const double *row, int64_t n, rle_rows_kind kind)
{
    bool possible = n == 0; /* some class can be drawn */
    for (int64_t i = 0; i < n; i++) {
        double v = row[i];
        if (isnan(v) || v == INFINITY) return true;
        if (kind != RLE_ROWS_LOGITS && isinf(v)) return true;
        if (kind >= RLE_ROWS_NONNEGATIVE && kind != RLE_ROWS_LOGITS && v < 0) return true;
        possible = possible || (kind == RLE_ROWS_LOGITS ? v != -INFINITY : v > 0);
    }
    return kind >= RLE_ROWS_PROBS && !possible;
}

/* Look at every row on the host, in double precision, and name the first bad one. */
rle_status rle_name_bad_row(const char *what, rle_rows_kind kind, rle_tensor *x)
{
    rle_tensor *host;
    RLE_TRY(rle_op_to(x, rle_device_cpu(), RLE_F64, &host));
    int64_t rows = rle_row_count(&x->a), n = rows ? rle_tensor_numel(x) / rows : 0;
    const double *v = host->a.data;
    rle_status status = RLE_OK;
    for (int64_t r = 0; r < rows && status == RLE_OK; r++) {
        if (!row_is_bad(v + r * n, n, kind)) continue;
        char shape[128], values[160] = "";
        size_t used = 0;
        for (int64_t i = 0; i < n && i < 8 && used < sizeof values - 24; i++)
            used += (size_t)snprintf(values + used, sizeof values - used, "%s%.6g",
                                     i ? ", " : "",
                                     isnan(v[r * n + i]) ? NAN : v[r * n + i]); /* no "-nan" */
        static const char *const rule[] = {"finite", "finite and not negative",
                                           "finite, not negative and not all 0",
                                           "numbers or -inf, and not all -inf"};
        status = rle_fail(RLE_INVALID_ARGUMENT, "%s: row %lld of %s is {%s%s}; values must be %s",
                          what, (long long)r + 1, rle_array_describe(&x->a, shape, sizeof shape),
                          values, n > 8 ? ", ..." : "", rule[kind]);
    }
    rle_tensor_release(host);
    return status;
}

rle_status rle_check_rows(const char *what, rle_rows_kind kind, rle_tensor *x)
{
    rle_tensor *t;
    RLE_TRY(rle_op_contiguous(x, &t));
    rle_array rows;
    matrix(&rows, t->a.data, t->a.dtype, rle_row_count(&t->a),
           t->a.ndim ? t->a.shape[t->a.ndim - 1] : 1);
    int64_t bad = -1;
    bool nonnegative = kind == RLE_ROWS_NONNEGATIVE || kind == RLE_ROWS_PROBS;
    rle_status status =
        rle_tensor_ops(t)->find_bad_row(rle_tensor_device(t), &rows, nonnegative, &bad);
    rle_tensor_release(t);
    RLE_TRY(status);
    return bad < 0 ? RLE_OK : rle_name_bad_row(what, kind, x);
}
