/* safetensors_write.c - the writer of safetensors files, and what it shares with the reader.
 *
 * The header is built in memory first; the file appears under its name only when all of it
 * is on disk. */
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "base/mem.h"
#include "io/io_internal.h"

rle_status rle_io_status(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR: return RLE_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS: return RLE_PERMISSION_DENIED;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM: return RLE_RESOURCE_EXHAUSTED;
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP: return RLE_INVALID_ARGUMENT;
    default: return RLE_UNKNOWN;
    }
}

int rle_utf8_length(const unsigned char *s, size_t left)
{
    unsigned char c = s[0];
    if (c < 0x80) return 1;
    int n = c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 0;
    if (n == 0 || left < (size_t)n) return 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    if (c == 0xE0 && s[1] < 0xA0) return 0; /* overlong */
    if (c == 0xED && s[1] > 0x9F) return 0; /* surrogates */
    if (c == 0xF0 && s[1] < 0x90) return 0; /* overlong */
    if (c == 0xF4 && s[1] > 0x8F) return 0; /* above U+10FFFF */
    return n;
}

static void to_hex(const unsigned char *digest, char *out)
{
    for (int i = 0; i < RLE_SHA256_HEX / 2; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

rle_status rle_sha256_hex(const void *data, size_t size, char *out)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    if (!EVP_Digest(data, size, digest, NULL, EVP_sha256(), NULL))
        return rle_fail(RLE_INTERNAL, "SHA-256 is not available");
    to_hex(digest, out);
    return RLE_OK;
}

/* ---- the header ---- */

typedef struct text {
    char *s;
    size_t length, capacity;
} text;

static rle_status put(text *t, const char *s, size_t n)
{
    if (n > t->capacity - t->length) {
        size_t wanted = (t->length + n) * 2;
        char *p = rle_realloc(t->s, wanted);
        if (!p) return rle_oom(wanted, "safetensors header");
        t->s = p;
        t->capacity = wanted;
    }
    memcpy(t->s + t->length, s, n);
    t->length += n;
    return RLE_OK;
}

static rle_status put_text(text *t, const char *s) { return put(t, s, strlen(s)); }

static rle_status put_integer(text *t, uint64_t v)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, v);
    return put_text(t, digits);
}

static rle_status put_string(text *t, const char *s)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + strlen(s);
    RLE_TRY(put_text(t, "\""));
    while (p < end) {
        int n = rle_utf8_length(p, (size_t)(end - p));
        if (n == 0)
            return rle_fail(RLE_INVALID_ARGUMENT, "\"%.64s\" is not UTF-8: names and metadata "
                                                  "of a safetensors file must be", s);
        char escape[8];
        if (*p == '"' || *p == '\\') {
            snprintf(escape, sizeof escape, "\\%c", *p);
            RLE_TRY(put_text(t, escape));
        } else if (*p < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", *p);
            RLE_TRY(put_text(t, escape));
        } else {
            RLE_TRY(put(t, (const char *)p, (size_t)n));
        }
        p += n;
    }
    return put_text(t, "\"");
}

static int compare_items(const void *pa, const void *pb)
{
    const rle_st_tensor *a = *(rle_st_tensor *const *)pa, *b = *(rle_st_tensor *const *)pb;
    size_t sa = rle_dtype_size(a->dtype), sb = rle_dtype_size(b->dtype);
    if (sa != sb) return sa < sb ? 1 : -1;
    return strcmp(a->name, b->name);
}

static int compare_names(const void *pa, const void *pb)
{
    return strcmp((*(rle_st_tensor *const *)pa)->name, (*(rle_st_tensor *const *)pb)->name);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp((*(const rle_st_pair *const *)a)->key, (*(const rle_st_pair *const *)b)->key);
}

static rle_status check_items(const rle_st_tensor **order, size_t count,
                              const rle_st_pair **keys, size_t metadata_count)
{
    qsort(order, count, sizeof *order, compare_names);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(order[i]->name, "__metadata__") == 0)
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "a tensor cannot be named __metadata__ in a safetensors file");
        if (i && strcmp(order[i - 1]->name, order[i]->name) == 0)
            return rle_fail(RLE_INVALID_ARGUMENT, "two tensors are named \"%.64s\"",
                            order[i]->name);
        if (!rle_st_dtype_name(order[i]->dtype))
            return rle_fail(RLE_INVALID_ARGUMENT, "tensor \"%.64s\" has no known dtype",
                            order[i]->name);
    }
    qsort(keys, metadata_count, sizeof *keys, compare_keys);
    for (size_t i = 0; i < metadata_count; i++) {
        if (strcmp(keys[i]->key, "sha256") == 0)
            return rle_fail(RLE_INVALID_ARGUMENT, "metadata \"sha256\" is written by the engine");
        if (i && strcmp(keys[i - 1]->key, keys[i]->key) == 0)
            return rle_fail(RLE_INVALID_ARGUMENT, "metadata \"%.64s\" is given twice",
                            keys[i]->key);
    }
    qsort(order, count, sizeof *order, compare_items);
    return RLE_OK;
}

static rle_status build_header(text *t, const rle_st_tensor *const *order, size_t count,
                               const rle_st_pair *const *keys, size_t metadata_count,
                               const char *digest)
{
    RLE_TRY(put(t, "\0\0\0\0\0\0\0\0{\"__metadata__\":{", 25));
    for (size_t i = 0; i < metadata_count; i++) {
        RLE_TRY(put_string(t, keys[i]->key));
        RLE_TRY(put_text(t, ":"));
        RLE_TRY(put_string(t, keys[i]->value));
        RLE_TRY(put_text(t, ","));
    }
    RLE_TRY(put_text(t, "\"sha256\":"));
    RLE_TRY(put_string(t, digest));
    RLE_TRY(put_text(t, "}"));
    uint64_t position = 0;
    for (size_t i = 0; i < count; i++) {
        const rle_st_tensor *item = order[i];
        RLE_TRY(put_text(t, ","));
        RLE_TRY(put_string(t, item->name));
        RLE_TRY(put_text(t, ":{\"dtype\":"));
        RLE_TRY(put_string(t, rle_st_dtype_name(item->dtype)));
        RLE_TRY(put_text(t, ",\"shape\":["));
        for (int d = 0; d < item->ndim; d++) {
            if (d) RLE_TRY(put_text(t, ","));
            RLE_TRY(put_integer(t, (uint64_t)item->shape[d]));
        }
        RLE_TRY(put_text(t, "],\"data_offsets\":["));
        RLE_TRY(put_integer(t, position));
        RLE_TRY(put_text(t, ","));
        position += item->size;
        RLE_TRY(put_integer(t, position));
        RLE_TRY(put_text(t, "]}"));
    }
    RLE_TRY(put_text(t, "}"));
    /* Data begins at a multiple of 64, for readers that map the file. */
    while (t->length % 64) RLE_TRY(put_text(t, " "));
    uint64_t length = t->length - 8;
    if (length > RLE_SAFETENSORS_MAX_HEADER)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "names, shapes and metadata take %zu bytes; a safetensors header "
                        "holds 1 MiB", (size_t)length);
    for (int i = 0; i < 8; i++) t->s[i] = (char)(length >> (8 * i));
    return RLE_OK;
}

static rle_status digest_items(const rle_st_tensor *const *order, size_t count, char *out)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    unsigned char digest[EVP_MAX_MD_SIZE];
    bool ok = c && EVP_DigestInit_ex(c, EVP_sha256(), NULL);
    for (size_t i = 0; ok && i < count; i++)
        ok = EVP_DigestUpdate(c, order[i]->data, order[i]->size);
    ok = ok && EVP_DigestFinal_ex(c, digest, NULL);
    EVP_MD_CTX_free(c);
    if (!ok) return rle_fail(RLE_INTERNAL, "SHA-256 is not available");
    to_hex(digest, out);
    return RLE_OK;
}

/* ---- the file ---- */

static rle_status write_all(int fd, const char *path, const void *data, size_t size)
{
    const char *p = data;
    while (size) {
        ssize_t n = write(fd, p, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return rle_fail(rle_io_status(errno), "%s: cannot write: %s", path, strerror(errno));
        p += n;
        size -= (size_t)n;
    }
    return RLE_OK;
}

static rle_status write_contents(int fd, const char *path, const text *header,
                                 const rle_st_tensor *const *order, size_t count)
{
    RLE_TRY(write_all(fd, path, header->s, header->length));
    for (size_t i = 0; i < count; i++)
        RLE_TRY(write_all(fd, path, order[i]->data, order[i]->size));
    if (fsync(fd) != 0)
        return rle_fail(rle_io_status(errno), "%s: cannot write: %s", path, strerror(errno));
    return RLE_OK;
}

/* The rename is on disk once its folder is. Some file systems cannot sync a folder; the
 * file is whole either way. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? rle_strdup(path) : rle_strdup(".");
    if (!folder) return;
    if (slash) folder[slash == path ? 1 : slash - path] = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    rle_free(folder);
}

static rle_status write_file(const char *path, const text *header,
                             const rle_st_tensor *const *order, size_t count)
{
    size_t room = strlen(path) + 32;
    char *temporary = rle_malloc(room);
    if (!temporary) return rle_oom(room, "file name");
    snprintf(temporary, room, "%s.%ld.tmp", path, (long)getpid());
    /* A file of that name is what an earlier process with our number left unfinished. */
    unlink(temporary);
    rle_status status = RLE_OK;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = rle_fail(rle_io_status(errno), "%s: cannot create: %s", path, strerror(errno));
    } else {
        status = write_contents(fd, path, header, order, count);
        if (close(fd) != 0 && status == RLE_OK)
            status = rle_fail(rle_io_status(errno), "%s: cannot write: %s", path,
                              strerror(errno));
        if (status == RLE_OK && rename(temporary, path) != 0)
            status = rle_fail(rle_io_status(errno), "%s: cannot rename the finished file: %s",
                              path, strerror(errno));
        if (status == RLE_OK)
            sync_folder(path);
        else
            unlink(temporary);
    }
    rle_free(temporary);
    return status;
}

rle_status rle_safetensors_write(const char *path, const rle_st_tensor *tensors, size_t count,
                                 const rle_st_pair *metadata, size_t metadata_count)
{
    text header = {NULL, 0, 0};
    char digest[RLE_SHA256_HEX + 1];
    size_t pointers = (count + metadata_count + 1) * sizeof(void *);
    const void **order = rle_malloc(pointers);
    if (!order) return rle_oom(pointers, "safetensors order");
    const void **keys = order + count;
    for (size_t i = 0; i < count; i++) order[i] = &tensors[i];
    for (size_t i = 0; i < metadata_count; i++) keys[i] = &metadata[i];
    const rle_st_tensor **items = (const rle_st_tensor **)order;
    const rle_st_pair **pairs = (const rle_st_pair **)keys;
    rle_status status = check_items(items, count, pairs, metadata_count);
    if (status == RLE_OK) status = digest_items(items, count, digest);
    if (status == RLE_OK)
        status = build_header(&header, items, count, pairs, metadata_count, digest);
    if (status == RLE_OK) status = write_file(path, &header, items, count);
    rle_free(header.s);
    rle_free(order);
    return status;
}
