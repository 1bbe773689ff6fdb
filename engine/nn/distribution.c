/* distribution.c - log-probabilities of classes as one operation with a gradient.
 *
 * With s the sum of a row's probabilities and a the action:
 *   probabilities: log(p_a / s);          d/dp_j = [j = a] / p_a - 1 / s
 *   logits:        l_a - logsumexp(l);    d/dl_j = [j = a] - softmax(l)_j
 * Made of the device's operations, which treat rows alike whatever the batch. */
#include "nn/distribution.h"

#include <math.h>
#include <stdio.h>

#include "autograd/autograd.h"
#include "base/mem.h"
#include "tensor/ops.h"

/* What backward needs. x and picked are [..., C] and [..., 1] after broadcasting. */
typedef struct log_prob {
    rle_custom custom;
    bool logits;
    rle_input input;       /* x as it came */
    rle_tensor *x;         /* broadcast with the actions, without history */
    rle_tensor *index;     /* [..., 1] */
    rle_tensor *total;     /* probabilities: s; logits: logsumexp; [..., 1] */
    rle_tensor *picked;    /* probabilities: p_a */
    rle_tensor *share;     /* probabilities: p_a / s before it was clamped */
    rle_storage *storage;  /* of x, to see a change in place; held through x */
    uint32_t version;
} log_prob;

static double epsilon(rle_dtype dtype)
{
    return dtype == RLE_F64 ? 0x1p-52 : 0x1p-23;
}

static void log_prob_free(rle_custom *custom)
{
    log_prob *n = (log_prob *)custom;
    rle_tensor_release(n->x);
    rle_tensor_release(n->index);
    rle_tensor_release(n->total);
    rle_tensor_release(n->picked);
    rle_tensor_release(n->share);
    rle_free(n);
}

/* -gout / s everywhere, gout / p_a more at the action. */
static rle_status probs_gradient(log_prob *n, rle_tensor *gout, rle_tensor **out)
{
    rle_tensor *at = NULL, *all = NULL, *wide = NULL, *g = NULL, *masked = NULL;
    double eps = epsilon(n->x->a.dtype);
    rle_status status = rle_op_unary_backward(RLE_UNARY_CLAMP, gout, n->share, NULL, eps, 1 - eps,
                                              &masked);
    /* Where p_a is 0 the result was clamped and masked is 0: it must stay so. */
    if (status == RLE_OK)
        status = rle_op_binary_scalar(RLE_BINARY_MAXIMUM, n->picked, 0x1p-126, false, &at);
    if (status == RLE_OK) status = rle_op_binary(RLE_BINARY_DIV, masked, at, &at);
    if (status == RLE_OK) status = rle_op_binary(RLE_BINARY_DIV, masked, n->total, &all);
    if (status == RLE_OK) status = rle_op_unary(RLE_UNARY_NEG, all, 0, 0, &all);
    if (status == RLE_OK)
        status = rle_op_expand(all, n->x->a.ndim, n->x->a.shape, &wide);
    if (status == RLE_OK) status = rle_op_clone(wide, &g);
    if (status == RLE_OK) status = rle_op_scatter(g, n->x->a.ndim - 1, n->index, at, false);
    rle_tensor_release(masked);
    rle_tensor_release(at);
    rle_tensor_release(all);
    rle_tensor_release(wide);
    if (status != RLE_OK)
        rle_tensor_release(g);
    else
        *out = g;
    return status;
}

/* -gout * softmax(l), gout more at the action. */
static rle_status logits_gradient(log_prob *n, rle_tensor *gout, rle_tensor **out)
{
    rle_tensor *g = NULL;
    int last = n->x->a.ndim - 1;
    RLE_TRY(rle_op_softmax(false, n->x, last, &g));
    rle_status status = rle_op_binary(RLE_BINARY_MUL, g, gout, &g);
    if (status == RLE_OK) status = rle_op_unary(RLE_UNARY_NEG, g, 0, 0, &g);
    if (status == RLE_OK) status = rle_op_scatter(g, last, n->index, gout, false);
    if (status != RLE_OK)
        rle_tensor_release(g);
    else
        *out = g;
    return status;
}

static rle_status log_prob_backward(rle_custom *custom, rle_tensor *gout, int nin,
                                    rle_tensor **gin)
{
    (void)nin;
    log_prob *n = (log_prob *)custom;
    if (n->storage->version != n->version)
        return rle_fail(RLE_FAILED_PRECONDITION,
                        "log_prob: the %s were changed in place after they were used; clone "
                        "them before the change", n->logits ? "logits" : "probs");
    rle_tensor *column = NULL, *g = NULL;
    RLE_TRY(rle_op_reshape(gout, n->index->a.ndim, n->index->a.shape, &column));
    rle_status status = n->logits ? logits_gradient(n, column, &g) : probs_gradient(n, column, &g);
    rle_tensor_release(column);
    RLE_TRY(status);
    status = rle_op_sum_to(g, n->input.ndim, n->input.shape, &gin[0]);
    rle_tensor_release(g);
    return status;
}

/* log(p_a / s), clamped; keeps what backward needs in n. */
static rle_status probs_forward(log_prob *n, rle_tensor **out)
{
    int last = n->x->a.ndim - 1;
    double eps = epsilon(n->x->a.dtype);
    rle_tensor *kept = NULL;
    RLE_TRY(rle_op_gather(n->x, last, n->index, &n->picked));
    RLE_TRY(rle_op_reduce(RLE_REDUCE_SUM, n->x, 1u << last, true, &n->total));
    RLE_TRY(rle_op_binary(RLE_BINARY_DIV, n->picked, n->total, &n->share));
    RLE_TRY(rle_op_unary(RLE_UNARY_CLAMP, n->share, eps, 1 - eps, &kept));
    rle_status status = rle_op_unary(RLE_UNARY_LOG, kept, 0, 0, &kept);
    if (status != RLE_OK)
        rle_tensor_release(kept);
    else
        *out = kept;
    return status;
}

static rle_status logits_forward(log_prob *n, rle_tensor **out)
{
    int last = n->x->a.ndim - 1;
    rle_tensor *r = NULL;
    RLE_TRY(rle_op_reduce(RLE_REDUCE_LOGSUMEXP, n->x, 1u << last, true, &n->total));
    RLE_TRY(rle_op_gather(n->x, last, n->index, &r));
    rle_status status = rle_op_binary(RLE_BINARY_SUB, r, n->total, &r);
    if (status != RLE_OK)
        rle_tensor_release(r);
    else
        *out = r;
    return status;
}

/* x and action broadcast into n->x [..., C] and n->index [..., 1]. */
static rle_status broadcast(log_prob *n, rle_tensor *x, rle_tensor *action)
{
    rle_array batch = x->a;
    batch.ndim--;
    int ndim;
    int64_t shape[RLE_MAX_DIMS + 1], classes = x->a.shape[x->a.ndim - 1];
    RLE_TRY(rle_broadcast(&batch, &action->a, &ndim, shape));
    if (ndim >= RLE_MAX_DIMS)
        return rle_fail(RLE_INVALID_ARGUMENT, "log_prob: more than %d dimensions", RLE_MAX_DIMS);
    rle_tensor *index = NULL, *wide = NULL;
    rle_status status = RLE_OK;
    if (action->a.dtype == RLE_I64)
        index = rle_tensor_retain(action);
    else
        status = rle_op_to(action, rle_tensor_device(action), RLE_I64, &index);
    if (status == RLE_OK) status = rle_op_expand(index, ndim, shape, &wide);
    shape[ndim] = 1;
    if (status == RLE_OK) status = rle_op_reshape(wide, ndim + 1, shape, &n->index);
    shape[ndim] = classes;
    if (status == RLE_OK) status = rle_op_expand(x, ndim + 1, shape, &n->x);
    rle_tensor_release(index);
    rle_tensor_release(wide);
    return status;
}

static rle_status forward(log_prob *n, rle_tensor *x, rle_tensor *action, rle_tensor **out)
{
    RLE_TRY(broadcast(n, x, action));
    rle_tensor *column = NULL;
    RLE_TRY(n->logits ? logits_forward(n, &column) : probs_forward(n, &column));
    rle_status status = rle_op_view(column, column->a.ndim - 1, column->a.shape, out);
    rle_tensor_release(column);
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
    log_prob *n = rle_calloc(1, sizeof *n);
    if (!n) return rle_oom(sizeof *n, "log_prob");
    n->custom = (rle_custom){.name = "log_prob", .backward = log_prob_backward,
                             .free = log_prob_free};
    n->logits = logits;
    n->input.ndim = x->a.ndim;
    for (int i = 0; i < x->a.ndim; i++) n->input.shape[i] = x->a.shape[i];
    rle_tensor *result = NULL;
    rle_status status = forward(n, x, action, &result);
    if (status != RLE_OK) {
        log_prob_free(&n->custom);
        return status;
    }
    n->storage = n->x->storage;
    n->version = n->storage->version;
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
    bool any = n == 0;
    for (int64_t i = 0; i < n; i++) {
        double v = row[i];
        if (isnan(v) || v == INFINITY) return true;
        if (kind != RLE_ROWS_LOGITS && isinf(v)) return true;
        if (kind == RLE_ROWS_NONNEGATIVE && v < 0) return true;
        any = any || v != -INFINITY;
    }
    return !any;
}

/* Look at every row on the host, in double precision, and name the first bad one. */
static rle_status name_bad_row(const char *what, rle_rows_kind kind, rle_tensor *x)
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
    rle_array rows = {.data = t->a.data, .dtype = t->a.dtype, .ndim = 2};
    rows.shape[0] = rle_row_count(&t->a);
    rows.shape[1] = t->a.ndim ? t->a.shape[t->a.ndim - 1] : 1;
    rle_array_set_contiguous(&rows);
    int64_t bad = -1;
    rle_status status =
        rle_tensor_ops(t)->find_bad_row(&rows, kind == RLE_ROWS_NONNEGATIVE, &bad);
    rle_tensor_release(t);
    RLE_TRY(status);
    return bad < 0 ? RLE_OK : name_bad_row(what, kind, x);
}
