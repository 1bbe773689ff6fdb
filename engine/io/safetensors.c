/* safetensors.c - the strict reader of safetensors files.
 *
 * The parser knows the format's one schema and no other JSON: it has no recursion, so no
 * input can exhaust the stack, and takes two allocations whose sizes are bounded by the
 * header's length: decoded strings never take more bytes than they had in the file. */
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/io_internal.h"

struct rle_safetensors {
    void *file;           /* the whole file, when opened by path */
    char *strings;        /* names and metadata, decoded */
    rle_st_tensor *tensors;
    rle_st_tensor **by_name; /* sorted, for find and to see a name twice */
    rle_st_pair *metadata;
    size_t count, capacity;
    size_t metadata_count, metadata_capacity;
};

/* Names of element types; order is of no meaning. Those with dtype RLE_DTYPE_COUNT exist in
 * the format but not in the engine. */
static const struct {
    const char *name;
    rle_dtype dtype;
} dtype_names[] = {
    {"F32", RLE_F32},  {"F64", RLE_F64},   {"I32", RLE_I32},
    {"I64", RLE_I64},  {"U8", RLE_U8},     {"BOOL", RLE_BOOL},
    {"F16", RLE_F16},  {"BF16", RLE_BF16}, {"I8", RLE_DTYPE_COUNT},
    {"I16", RLE_DTYPE_COUNT}, {"U16", RLE_DTYPE_COUNT}, {"U32", RLE_DTYPE_COUNT},
    {"U64", RLE_DTYPE_COUNT}, {"C64", RLE_DTYPE_COUNT}, {"F4", RLE_DTYPE_COUNT},
    {"F6_E2M3", RLE_DTYPE_COUNT}, {"F6_E3M2", RLE_DTYPE_COUNT},
    {"F8_E5M2", RLE_DTYPE_COUNT}, {"F8_E4M3", RLE_DTYPE_COUNT},
    {"F8_E8M0", RLE_DTYPE_COUNT}, {"F8_E5M2FNUZ", RLE_DTYPE_COUNT},
    {"F8_E4M3FNUZ", RLE_DTYPE_COUNT},
};

const char *rle_st_dtype_name(rle_dtype dtype)
{
    for (size_t i = 0; i < sizeof dtype_names / sizeof *dtype_names; i++)
        if (dtype_names[i].dtype == dtype) return dtype_names[i].name;
    return NULL;
}

/* ---- the header ---- */

typedef struct reader {
    const char *what; /* file name, for messages */
    const unsigned char *start, *p, *end;
    char *strings; /* where the next decoded string goes */
    rle_safetensors *st;
} reader;

static rle_status broken(const reader *r, const char *why)
{
    return rle_fail(RLE_DATA_LOSS, "%s: header byte %zu: %s", r->what,
                    (size_t)(r->p - r->start), why);
}

static void skip_space(reader *r)
{
    while (r->p < r->end &&
           (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r'))
        r->p++;
}

/* The next character after white space; 0 at the end. */
static int peek(reader *r)
{
    skip_space(r);
    return r->p < r->end ? *r->p : 0;
}

static rle_status expect(reader *r, char c, const char *why)
{
    if (peek(r) != (unsigned char)c) return broken(r, why);
    r->p++;
    return RLE_OK;
}

static rle_status read_hex4(reader *r, uint32_t *out)
{
    uint32_t v = 0;
    if (r->end - r->p < 4) return broken(r, "a \\u escape is cut off");
    for (int i = 0; i < 4; i++, r->p++) {
        int c = *r->p;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return broken(r, "a \\u escape needs four hexadecimal digits");
        v = v << 4 | (uint32_t)digit;
    }
    *out = v;
    return RLE_OK;
}

static char *put_utf8(char *out, uint32_t c)
{
    if (c < 0x80) {
        *out++ = (char)c;
    } else if (c < 0x800) {
        *out++ = (char)(0xC0 | c >> 6);
        *out++ = (char)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        *out++ = (char)(0xE0 | c >> 12);
        *out++ = (char)(0x80 | (c >> 6 & 0x3F));
        *out++ = (char)(0x80 | (c & 0x3F));
    } else {
        *out++ = (char)(0xF0 | c >> 18);
        *out++ = (char)(0x80 | (c >> 12 & 0x3F));
        *out++ = (char)(0x80 | (c >> 6 & 0x3F));
        *out++ = (char)(0x80 | (c & 0x3F));
    }
    return out;
}

static rle_status read_escape(reader *r, char **out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (r->p == r->end) return broken(r, "the header ends inside a string");
    const char *at = *r->p ? strchr(from, *r->p) : NULL;
    if (at) {
        r->p++;
        *(*out)++ = to[at - from];
        return RLE_OK;
    }
    if (*r->p != 'u') return broken(r, "JSON has no such escape");
    r->p++;
    uint32_t c, low;
    RLE_TRY(read_hex4(r, &c));
    if (c >= 0xD800 && c < 0xDC00) {
        if (r->end - r->p < 2 || r->p[0] != '\\' || r->p[1] != 'u')
            return broken(r, "half a surrogate pair");
        r->p += 2;
        RLE_TRY(read_hex4(r, &low));
        if (low < 0xDC00 || low > 0xDFFF) return broken(r, "half a surrogate pair");
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    } else if (c >= 0xDC00 && c <= 0xDFFF) {
        return broken(r, "half a surrogate pair");
    }
    if (c == 0) return broken(r, "a NUL character in a string");
    *out = put_utf8(*out, c);
    return RLE_OK;
}

/* A string, decoded and ended by NUL, into the arena. */
static rle_status read_string(reader *r, const char **out)
{
    RLE_TRY(expect(r, '"', "expected a string"));
    char *s = r->strings;
    *out = s;
    for (;;) {
        if (r->p == r->end) return broken(r, "the header ends inside a string");
        unsigned char c = *r->p;
        if (c == '"') break;
        if (c < 0x20) return broken(r, "a control character in a string");
        if (c == '\\') {
            r->p++;
            RLE_TRY(read_escape(r, &s));
            continue;
        }
        int n = rle_utf8_length(r->p, (size_t)(r->end - r->p));
        if (n == 0) return broken(r, "a string is not UTF-8");
        while (n--) *s++ = (char)*r->p++;
    }
    r->p++;
    *s++ = '\0'; /* stands where a quote stood: the arena never runs out */
    r->strings = s;
    return RLE_OK;
}

/* A whole number from 0 to 2^63 - 1, without sign, fraction or exponent. */
static rle_status read_integer(reader *r, int64_t *out)
{
    int c = peek(r);
    if (c < '0' || c > '9') return broken(r, "expected a whole number");
    if (c == '0' && r->end - r->p > 1 && r->p[1] >= '0' && r->p[1] <= '9')
        return broken(r, "a number with a leading zero");
    uint64_t v = 0;
    for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++) {
        if (v > (INT64_MAX - (uint64_t)(*r->p - '0')) / 10)
            return broken(r, "a number above 2^63 - 1");
        v = v * 10 + (uint64_t)(*r->p - '0');
    }
    if (r->p < r->end && (*r->p == '.' || *r->p == 'e' || *r->p == 'E'))
        return broken(r, "expected a whole number");
    *out = (int64_t)v;
    return RLE_OK;
}

/* Integers between brackets, at most `max`. */
static rle_status read_integers(reader *r, int64_t *out, int max, int *count,
                                const char *too_many)
{
    RLE_TRY(expect(r, '[', "expected a list of numbers"));
    *count = 0;
    if (peek(r) == ']') {
        r->p++;
        return RLE_OK;
    }
    for (;;) {
        if (*count == max) return broken(r, too_many);
        RLE_TRY(read_integer(r, &out[(*count)++]));
        if (peek(r) == ']') break;
        RLE_TRY(expect(r, ',', "expected , or ] in a list"));
    }
    r->p++;
    return RLE_OK;
}

static rle_status read_dtype(reader *r, const char *tensor, rle_dtype *out)
{
    const char *name;
    RLE_TRY(read_string(r, &name));
    for (size_t i = 0; i < sizeof dtype_names / sizeof *dtype_names; i++) {
        if (strcmp(name, dtype_names[i].name) != 0) continue;
        *out = dtype_names[i].dtype;
        if (*out == RLE_DTYPE_COUNT || *out == RLE_F16 || *out == RLE_BF16)
            return rle_fail(RLE_UNIMPLEMENTED,
                            "%s: tensor \"%.64s\" is %s, which the engine does not compute "
                            "with; save it as F32",
                            r->what, tensor, name);
        return RLE_OK;
    }
    return rle_fail(RLE_DATA_LOSS, "%s: tensor \"%.64s\": no element type \"%.32s\"", r->what,
                    tensor, name);
}

/* Room for one more element of an array that grows by doubling. */
static rle_status grow(void **array, size_t count, size_t *capacity, size_t element)
{
    if (count < *capacity) return RLE_OK;
    size_t wanted = *capacity ? *capacity * 2 : 16;
    void *p = rle_realloc(*array, wanted * element);
    if (!p) return rle_oom(wanted * element, "safetensors header");
    *array = p;
    *capacity = wanted;
    return RLE_OK;
}

static rle_status bad_tensor(const reader *r, const char *tensor, const char *why)
{
    return rle_fail(RLE_DATA_LOSS, "%s: tensor \"%.64s\": %s", r->what, tensor, why);
}

/* {"dtype": ..., "shape": [...], "data_offsets": [begin, end]} with `name` already read.
 * *position: where the last range ended, moved on. `left`: bytes of data in the file. */
static rle_status read_tensor(reader *r, const char *name, const unsigned char *data,
                              uint64_t left, uint64_t *position)
{
    rle_st_tensor t = {.name = name};
    int64_t offsets[2] = {0, 0};
    unsigned seen = 0;
    RLE_TRY(expect(r, '{', "expected { after a tensor's name"));
    do {
        const char *key;
        unsigned bit;
        int n;
        char *arena = r->strings;
        RLE_TRY(read_string(r, &key));
        RLE_TRY(expect(r, ':', "expected : after a name"));
        if (strcmp(key, "dtype") == 0) {
            bit = 1;
            RLE_TRY(read_dtype(r, name, &t.dtype));
        } else if (strcmp(key, "shape") == 0) {
            bit = 2;
            RLE_TRY(read_integers(r, t.shape, RLE_MAX_DIMS, &t.ndim,
                                  "more than 8 dimensions"));
        } else if (strcmp(key, "data_offsets") == 0) {
            bit = 4;
            RLE_TRY(read_integers(r, offsets, 2, &n, "data_offsets takes two numbers"));
            if (n != 2) return broken(r, "data_offsets takes two numbers");
        } else {
            return bad_tensor(r, name, "a key that is not dtype, shape or data_offsets");
        }
        if (seen & bit) return bad_tensor(r, name, "a key stands twice");
        seen |= bit;
        r->strings = arena; /* keys are not kept */
        if (peek(r) == '}') break;
        RLE_TRY(expect(r, ',', "expected , or } in a tensor's entry"));
    } while (true);
    r->p++;
    if (seen != 7) return bad_tensor(r, name, "dtype, shape or data_offsets is missing");

    uint64_t size = rle_dtype_size(t.dtype);
    bool empty = false;
    for (int i = 0; i < t.ndim; i++) empty = empty || t.shape[i] == 0;
    for (int i = 0; i < t.ndim; i++) {
        if (!empty && (uint64_t)t.shape[i] > INT64_MAX / size)
            return bad_tensor(r, name, "its shape holds more than 2^63 bytes");
        size = empty ? 0 : size * (uint64_t)t.shape[i];
    }
    if (offsets[1] < offsets[0]) return bad_tensor(r, name, "its range ends before it begins");
    if ((uint64_t)offsets[0] != *position)
        return bad_tensor(r, name,
                          (uint64_t)offsets[0] < *position
                              ? "its range overlaps the one before, or stands before it"
                              : "a gap before its range");
    if ((uint64_t)(offsets[1] - offsets[0]) != size)
        return bad_tensor(r, name, "its range is not as long as its shape and type say");
    if ((uint64_t)offsets[1] > left)
        return bad_tensor(r, name, "its range ends behind the end of the file");
    t.data = data + offsets[0];
    t.size = (size_t)size;
    *position = (uint64_t)offsets[1];
    rle_safetensors *st = r->st;
    RLE_TRY(grow((void **)&st->tensors, st->count, &st->capacity, sizeof t));
    st->tensors[st->count++] = t;
    return RLE_OK;
}

static rle_status read_metadata(reader *r)
{
    rle_safetensors *st = r->st;
    RLE_TRY(expect(r, '{', "expected { after __metadata__"));
    if (peek(r) == '}') {
        r->p++;
        return RLE_OK;
    }
    for (;;) {
        rle_st_pair pair;
        RLE_TRY(read_string(r, &pair.key));
        RLE_TRY(expect(r, ':', "expected : after a name"));
        RLE_TRY(read_string(r, &pair.value));
        RLE_TRY(grow((void **)&st->metadata, st->metadata_count, &st->metadata_capacity,
                     sizeof pair));
        st->metadata[st->metadata_count++] = pair;
        if (peek(r) == '}') break;
        RLE_TRY(expect(r, ',', "expected , or } in the metadata"));
    }
    r->p++;
    return RLE_OK;
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp((*(rle_st_tensor *const *)a)->name, (*(rle_st_tensor *const *)b)->name);
}

static int compare_pairs(const void *a, const void *b)
{
    return strcmp(((const rle_st_pair *)a)->key, ((const rle_st_pair *)b)->key);
}

static rle_status check_names(const reader *r)
{
    rle_safetensors *st = r->st;
    st->by_name = rle_malloc((st->count ? st->count : 1) * sizeof *st->by_name);
    if (!st->by_name) return rle_oom(st->count * sizeof *st->by_name, "safetensors names");
    for (size_t i = 0; i < st->count; i++) st->by_name[i] = &st->tensors[i];
    qsort(st->by_name, st->count, sizeof *st->by_name, compare_tensors);
    for (size_t i = 1; i < st->count; i++)
        if (compare_tensors(&st->by_name[i - 1], &st->by_name[i]) == 0)
            return bad_tensor(r, st->by_name[i]->name, "its name stands twice");
    if (st->metadata_count)
        qsort(st->metadata, st->metadata_count, sizeof *st->metadata, compare_pairs);
    for (size_t i = 1; i < st->metadata_count; i++)
        if (strcmp(st->metadata[i - 1].key, st->metadata[i].key) == 0)
            return rle_fail(RLE_DATA_LOSS, "%s: metadata \"%.64s\" stands twice", r->what,
                            st->metadata[i].key);
    return RLE_OK;
}

static rle_status check_digest(const reader *r, const void *data, size_t size)
{
    for (size_t i = 0; i < r->st->metadata_count; i++) {
        if (strcmp(r->st->metadata[i].key, "sha256") != 0) continue;
        char digest[RLE_SHA256_HEX + 1];
        RLE_TRY(rle_sha256_hex(data, size, digest));
        if (strcmp(digest, r->st->metadata[i].value) != 0)
            return rle_fail(RLE_DATA_LOSS, "%s: sha256 mismatch: the data was changed", r->what);
    }
    return RLE_OK;
}

static rle_status read_header(reader *r, const unsigned char *data, uint64_t left)
{
    uint64_t position = 0;
    bool metadata = false;
    if (r->p == r->end || *r->p != '{') return broken(r, "expected {");
    r->p++;
    if (peek(r) == '}') {
        r->p++;
    } else {
        for (;;) {
            const char *name;
            RLE_TRY(read_string(r, &name));
            RLE_TRY(expect(r, ':', "expected : after a name"));
            if (strcmp(name, "__metadata__") == 0) {
                if (metadata) return broken(r, "__metadata__ stands twice");
                metadata = true;
                RLE_TRY(read_metadata(r));
            } else {
                RLE_TRY(read_tensor(r, name, data, left, &position));
            }
            if (peek(r) == '}') break;
            RLE_TRY(expect(r, ',', "expected , or } between tensors"));
        }
        r->p++;
    }
    skip_space(r);
    if (r->p != r->end) return broken(r, "something follows the header's last }");
    if (position != left)
        return rle_fail(RLE_DATA_LOSS, "%s: %llu bytes of data, but the header speaks of %llu",
                        r->what, (unsigned long long)left, (unsigned long long)position);
    RLE_TRY(check_names(r));
    return check_digest(r, data, (size_t)left);
}

static uint64_t length_of(const unsigned char *b)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | b[i];
    return n;
}

/* What can be said from the first 8 bytes and the size. */
static rle_status check_length(const unsigned char *b, uint64_t size, const char *what)
{
    if (size < 10)
        return rle_fail(RLE_DATA_LOSS, "%s: %llu bytes are too few for a safetensors file",
                        what, (unsigned long long)size);
    uint64_t n = length_of(b);
    if (n > RLE_SAFETENSORS_MAX_HEADER)
        return rle_fail(RLE_DATA_LOSS,
                        "%s: a header of %llu bytes, above the limit of 1 MiB: no "
                        "safetensors file, or a damaged one",
                        what, (unsigned long long)n);
    if (n > size - 8)
        return rle_fail(RLE_DATA_LOSS, "%s: cut off: the header has %llu bytes, the file %llu",
                        what, (unsigned long long)n, (unsigned long long)size);
    return RLE_OK;
}

rle_status rle_safetensors_parse(const void *bytes, size_t size, const char *what,
                                 rle_safetensors **out)
{
    const unsigned char *b = bytes;
    RLE_TRY(check_length(b, size, what));
    size_t header = (size_t)length_of(b);
    rle_safetensors *st = rle_calloc(1, sizeof *st);
    if (!st) return rle_oom(sizeof *st, "safetensors file");
    rle_status status;
    st->strings = rle_malloc(header + 1);
    if (!st->strings) {
        status = rle_oom(header + 1, "safetensors names");
    } else {
        reader r = {.what = what, .start = b + 8, .p = b + 8, .end = b + 8 + header,
                    .strings = st->strings, .st = st};
        status = read_header(&r, b + 8 + header, size - 8 - header);
    }
    if (status != RLE_OK)
        rle_safetensors_close(st);
    else
        *out = st;
    return status;
}

/* ---- the file ---- */

static rle_status read_all(int fd, const char *path, unsigned char *to, size_t size)
{
    while (size) {
        ssize_t n = read(fd, to, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return rle_fail(rle_io_status(errno), "%s: cannot read: %s", path, strerror(errno));
        if (n == 0) return rle_fail(RLE_DATA_LOSS, "%s: became shorter while it was read", path);
        to += n;
        size -= (size_t)n;
    }
    return RLE_OK;
}

static rle_status read_file(int fd, const char *path, void **bytes, size_t *size)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return rle_fail(rle_io_status(errno), "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return rle_fail(RLE_INVALID_ARGUMENT, "%s: not a file", path);
    unsigned char head[8] = {0};
    uint64_t total = (uint64_t)info.st_size;
    if (total >= 8) RLE_TRY(read_all(fd, path, head, 8));
    RLE_TRY(check_length(head, total, path));
    unsigned char *b = rle_malloc((size_t)total);
    if (!b) return rle_oom((size_t)total, path);
    memcpy(b, head, 8);
    rle_status status = read_all(fd, path, b + 8, (size_t)total - 8);
    if (status != RLE_OK) {
        rle_free(b);
        return status;
    }
    *bytes = b;
    *size = (size_t)total;
    return RLE_OK;
}

rle_status rle_safetensors_open(const char *path, rle_safetensors **out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return rle_fail(rle_io_status(errno), "%s: cannot open: %s", path, strerror(errno));
    void *bytes = NULL;
    size_t size = 0;
    rle_status status = read_file(fd, path, &bytes, &size);
    close(fd);
    RLE_TRY(status);
    rle_safetensors *st;
    status = rle_safetensors_parse(bytes, size, path, &st);
    if (status != RLE_OK) {
        rle_free(bytes);
        return status;
    }
    st->file = bytes;
    *out = st;
    return RLE_OK;
}

void rle_safetensors_close(rle_safetensors *st)
{
    if (!st) return;
    rle_free(st->file);
    rle_free(st->strings);
    rle_free(st->tensors);
    rle_free(st->by_name);
    rle_free(st->metadata);
    rle_free(st);
}

size_t rle_safetensors_count(const rle_safetensors *st) { return st->count; }

const rle_st_tensor *rle_safetensors_at(const rle_safetensors *st, size_t i)
{
    return i < st->count ? &st->tensors[i] : NULL;
}

const rle_st_tensor *rle_safetensors_find(const rle_safetensors *st, const char *name)
{
    size_t low = 0, high = st->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(name, st->by_name[middle]->name);
        if (order == 0) return st->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

size_t rle_safetensors_metadata_count(const rle_safetensors *st) { return st->metadata_count; }

rle_st_pair rle_safetensors_metadata_at(const rle_safetensors *st, size_t i)
{
    rle_st_pair none = {NULL, NULL};
    return i < st->metadata_count ? st->metadata[i] : none;
}
