/* test_safetensors.c - round trips, every breach of the format, damaged files, full memory
 * and full disks. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/safetensors.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/rle_st_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path);
    }
    closedir(d);
    return rmdir(folder);
}

static int files_in_folder(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

static const char *in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A file in memory from its header and data. */
static size_t assemble(char *to, const char *header, const void *data, size_t size)
{
    uint64_t n = strlen(header);
    for (int i = 0; i < 8; i++) to[i] = (char)(n >> (8 * i));
    memcpy(to + 8, header, n);
    memcpy(to + 8 + n, data, size);
    return 8 + n + size;
}

static rle_status parse(const char *header, size_t size)
{
    static const char zeros[64];
    char bytes[2048];
    size_t n = assemble(bytes, header, zeros, size);
    rle_safetensors *st = NULL;
    rle_status status = rle_safetensors_parse(bytes, n, "test", &st);
    if (status == RLE_OK) rle_safetensors_close(st);
    return status;
}

static const float weights[6] = {1, -2, 3.5f, 4, 5, 6};
static const int64_t steps[1] = {9007199254740993};
static const unsigned char flags[3] = {1, 0, 1};

static const rle_st_tensor items[] = {
    {"layer.weight", RLE_F32, 2, {2, 3}, weights, sizeof weights},
    {"step", RLE_I64, 0, {0}, steps, sizeof steps},
    {"quote\"\\\n\xc3\xa9", RLE_BOOL, 1, {3}, flags, sizeof flags},
    {"none", RLE_F32, 2, {0, 4}, NULL, 0},
};
static const rle_st_pair notes[] = {{"name", "a \"b\"\t"}, {"empty", ""}};

static void what_is_written_is_read(void **state)
{
    (void)state;
    const char *path = in_folder("round");
    size_t bytes = rle_mem_bytes(), blocks = rle_mem_blocks();
    for (int repeat = 0; repeat < 50; repeat++) {
        assert_int_equal(rle_safetensors_write(path, items, 4, notes, 2), RLE_OK);
        rle_safetensors *st;
        assert_int_equal(rle_safetensors_open(path, &st), RLE_OK);
        assert_int_equal(rle_safetensors_count(st), 4);
        for (int i = 0; i < 4; i++) {
            const rle_st_tensor *t = rle_safetensors_find(st, items[i].name);
            assert_non_null(t);
            assert_string_equal(t->name, items[i].name);
            assert_int_equal(t->dtype, items[i].dtype);
            assert_int_equal(t->ndim, items[i].ndim);
            for (int d = 0; d < t->ndim; d++)
                assert_int_equal(t->shape[d], items[i].shape[d]);
            assert_int_equal(t->size, items[i].size);
            if (t->size) assert_memory_equal(t->data, items[i].data, t->size);
        }
        assert_null(rle_safetensors_find(st, "layer"));
        assert_int_equal(rle_safetensors_metadata_count(st), 3); /* and the digest */
        assert_string_equal(rle_safetensors_metadata_at(st, 0).key, "empty");
        assert_string_equal(rle_safetensors_metadata_at(st, 1).value, "a \"b\"\t");
        rle_safetensors_close(st);
    }
    assert_int_equal(rle_mem_bytes(), bytes);
    assert_int_equal(rle_mem_blocks(), blocks);
    assert_int_equal(files_in_folder(), 1);
    unlink(path);
}

#define ENTRY(name, shape, from, to)                                                     \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"

static void good_headers_are_accepted(void **state)
{
    (void)state;
    assert_int_equal(parse("{}", 0), RLE_OK);
    assert_int_equal(parse("{}   ", 0), RLE_OK);
    assert_int_equal(parse("{" ENTRY("a", "[2]", "0", "8") "}", 8), RLE_OK);
    assert_int_equal(parse("{ \"a\" : { \"shape\" : [ 2 , 1 ] ,\n \"dtype\" : \"F32\" , "
                           "\"data_offsets\" : [ 0 , 8 ] } } ", 8), RLE_OK);
    assert_int_equal(parse("{" ENTRY("a", "[]", "0", "4") "," ENTRY("b", "[0,9]", "4", "4")
                           "," ENTRY("c", "[1]", "4", "8") "}", 8), RLE_OK);
    assert_int_equal(parse("{\"__metadata__\":{\"k\":\"\\u00e9\\ud83d\\ude00\\/\"}}", 0), RLE_OK);
    assert_int_equal(parse("{\"__metadata__\":{}}", 0), RLE_OK);
}

static void every_breach_is_data_loss(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } breach[] = {
        {"{" ENTRY("a", "[2]", "0", "8") "," ENTRY("a", "[2]", "8", "16") "}", 16, "twice"},
        {"{" ENTRY("a", "[2]", "0", "8") "," ENTRY("b", "[2]", "4", "12") "}", 12, "overlaps"},
        {"{" ENTRY("a", "[2]", "0", "8") "," ENTRY("b", "[1]", "12", "16") "}", 16, "gap"},
        {"{" ENTRY("b", "[1]", "8", "12") "," ENTRY("a", "[2]", "0", "8") "}", 12, "gap"},
        {"{" ENTRY("a", "[1]", "4", "8") "}", 8, "gap"},
        {"{" ENTRY("a", "[3]", "0", "8") "}", 8, "not as long"},
        {"{" ENTRY("a", "[2]", "8", "0") "}", 8, "ends before"},
        {"{" ENTRY("a", "[4]", "0", "16") "}", 8, "behind the end"},
        {"{" ENTRY("a", "[2]", "0", "8") "}", 12, "speaks of 8"},
        {"{}", 4, "speaks of 0"},
        {"{" ENTRY("a", "[4611686018427387904,4]", "0", "8") "}", 8, "2^63"},
        {"{" ENTRY("a", "[4294967296,4294967296,16]", "0", "0") "}", 0, "2^63"},
        {"{" ENTRY("a", "[9223372036854775808]", "0", "8") "}", 8, "2^63"},
        {"{" ENTRY("a", "[-2]", "0", "8") "}", 8, "whole number"},
        {"{" ENTRY("a", "[2.0]", "0", "8") "}", 8, "whole number"},
        {"{" ENTRY("a", "[2e0]", "0", "8") "}", 8, "whole number"},
        {"{" ENTRY("a", "[02]", "0", "8") "}", 8, "leading zero"},
        {"{" ENTRY("a", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "8 dimensions"},
        {"{" ENTRY("a", "[2", "0", "8") "}", 8, "whole number"},
        {"{" ENTRY("a", "[2]", "0,4", "8") "}", 8, "two numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "two numbers"},
        {"{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "F99"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"shape\":[2]}}", 8, "twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"more\":[2]}}", 8, "not dtype"},
        {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "twice"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "string"},
        {"{\"__metadata__\":{\"a\":{\"b\":{}}}}", 0, "string"},
        {"{\"__metadata__\":{\"sha256\":\"0000\"}}", 0, "sha256 mismatch"},
        {"{\"__metadata__\":{\"\\u0000\":\"\"}}", 0, "NUL"},
        {"{\"__metadata__\":{\"\\ud800\":\"\"}}", 0, "surrogate"},
        {"{\"__metadata__\":{\"\\udc00\":\"\"}}", 0, "surrogate"},
        {"{\"__metadata__\":{\"\\ud800\\u0041\":\"\"}}", 0, "surrogate"},
        {"{\"__metadata__\":{\"\\x\":\"\"}}", 0, "escape"},
        {"{\"__metadata__\":{\"\\u00g0\":\"\"}}", 0, "hexadecimal"},
        {"{\"__metadata__\":{\"\xff\":\"\"}}", 0, "UTF-8"},
        {"{\"__metadata__\":{\"\xc0\xaf\":\"\"}}", 0, "UTF-8"},
        {"{\"__metadata__\":{\"\xed\xa0\x80\":\"\"}}", 0, "UTF-8"},
        {"{\"__metadata__\":{\"\n\":\"\"}}", 0, "control"},
        {"{\"__metadata__\":{\"a\":\"b", 0, "inside a string"},
        {"{\"__metadata__\":{\"a\":\"b\"}", 0, "expected"},
        {"{,}", 0, "string"},
        {"{} x", 0, "follows"},
        {"[]", 0, "expected {"},
        {" {}", 0, "expected {"},
        {"{" ENTRY("a", "[2]", "0", "8") ",}", 8, "string"},
    };
    size_t blocks = rle_mem_blocks();
    for (size_t i = 0; i < sizeof breach / sizeof *breach; i++) {
        rle_status status = parse(breach[i].header, breach[i].data);
        if (status != RLE_DATA_LOSS || !strstr(rle_message(), breach[i].message))
            fail_msg("%s: %s, \"%s\"", breach[i].header, rle_status_name(status),
                     rle_message());
    }
    assert_int_equal(parse("{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4),
                     RLE_UNIMPLEMENTED);
    assert_int_equal(parse("{\"a\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4),
                     RLE_UNIMPLEMENTED);
    assert_int_equal(rle_mem_blocks(), blocks);
}

static void a_long_header_is_refused_before_memory_is_taken(void **state)
{
    (void)state;
    unsigned char bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0x40, '{', '}'};
    rle_safetensors *st;
    assert_int_equal(rle_safetensors_parse(bytes, sizeof bytes, "t", &st), RLE_DATA_LOSS);
    memcpy(bytes, "\x01\x00\x10\x00\x00\x00\x00\x00", 8); /* 1 MiB and 1 byte */
    assert_int_equal(rle_safetensors_parse(bytes, sizeof bytes, "t", &st), RLE_DATA_LOSS);
    assert_non_null(strstr(rle_message(), "1 MiB"));
    memcpy(bytes, "\x09\x00\x00\x00\x00\x00\x00\x00", 8);
    assert_int_equal(rle_safetensors_parse(bytes, sizeof bytes, "t", &st), RLE_DATA_LOSS);
    assert_non_null(strstr(rle_message(), "cut off"));
    for (size_t n = 0; n < 10; n++)
        assert_int_equal(rle_safetensors_parse(bytes, n, "t", &st), RLE_DATA_LOSS);
}

static unsigned char *contents(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    unsigned char *b = malloc(4096);
    *size = fread(b, 1, 4096, f);
    fclose(f);
    return b;
}

/* Each byte changed in turn, each length cut: refused, except where a change leaves a
 * valid file with the same data (a letter of a name, white space). */
static void damage_is_seen(void **state)
{
    (void)state;
    const char *path = in_folder("damage");
    assert_int_equal(rle_safetensors_write(path, items, 4, notes, 2), RLE_OK);
    size_t size, blocks = rle_mem_blocks();
    unsigned char *b = contents(path, &size);
    uint64_t header = b[0] | (uint64_t)b[1] << 8;
    rle_safetensors *st;
    for (size_t n = 0; n < size; n++) {
        unsigned char *cut = malloc(n ? n : 1); /* own block: an overrun is seen */
        memcpy(cut, b, n);
        assert_int_equal(rle_safetensors_parse(cut, n, "cut", &st), RLE_DATA_LOSS);
        free(cut);
    }
    for (size_t i = 0; i < size; i++) {
        for (int bit = 0; bit < 8; bit++) {
            b[i] ^= (unsigned char)(1u << bit);
            rle_status status = rle_safetensors_parse(b, size, "damaged", &st);
            if (i >= 8 + header || i < 8) assert_int_equal(status, RLE_DATA_LOSS);
            if (status == RLE_OK) rle_safetensors_close(st);
            b[i] ^= (unsigned char)(1u << bit);
        }
    }
    assert_int_equal(rle_safetensors_parse(b, size, "whole", &st), RLE_OK);
    rle_safetensors_close(st);
    free(b);
    assert_int_equal(rle_mem_blocks(), blocks);
    unlink(path);
}

/* Random edits of a valid header: whatever comes out, no crash and nothing left behind. */
static void random_headers_do_no_harm(void **state)
{
    (void)state;
    static const char good[] = "{\"__metadata__\":{\"k\":\"v\\u00e9\"},"
                               ENTRY("a", "[2,1]", "0", "8") "," ENTRY("b", "[]", "8", "12") "}";
    static const char alphabet[] = "{}[]\":,\\u0123456789abcdefF32 \xc3\xa9\n-.e";
    size_t blocks = rle_mem_blocks();
    uint32_t x = 12345, accepted = 0;
    for (int i = 0; i < 100000; i++) {
        char header[sizeof good + 8];
        strcpy(header, good);
        for (int edits = 1 + i % 3; edits; edits--) {
            x = x * 1664525 + 1013904223;
            size_t at = (x >> 8) % strlen(header);
            x = x * 1664525 + 1013904223;
            char c = alphabet[(x >> 8) % (sizeof alphabet - 1)];
            if (x >> 31)
                header[at] = c;
            else
                memmove(header + at, header + at + 1, strlen(header + at));
        }
        accepted += parse(header, 12) == RLE_OK;
    }
    assert_true(accepted > 100); /* edits of names */
    assert_int_equal(rle_mem_blocks(), blocks);
}

static void full_memory_is_reported(void **state)
{
    (void)state;
    const char *path = in_folder("memory");
    assert_int_equal(rle_safetensors_write(path, items, 4, notes, 2), RLE_OK);
    size_t blocks = rle_mem_blocks(), size;
    unsigned char *before = contents(path, &size);
    int failures = 0;
    for (uint64_t n = 1;; n++, failures++) {
        rle_safetensors *st;
        rle_mem_fault(n, false);
        rle_status status = rle_safetensors_open(path, &st);
        rle_mem_fault(0, false);
        if (status == RLE_OK) {
            rle_safetensors_close(st);
            break;
        }
        assert_int_equal(status, RLE_RESOURCE_EXHAUSTED);
    }
    assert_true(failures >= 4);
    for (uint64_t n = 1;; n++) {
        rle_mem_fault(n, false);
        rle_status status = rle_safetensors_write(path, items, 3, NULL, 0);
        rle_mem_fault(0, false);
        if (status == RLE_OK) break;
        assert_int_equal(status, RLE_RESOURCE_EXHAUSTED);
        size_t now;
        unsigned char *after = contents(path, &now);
        assert_int_equal(now, size);
        assert_memory_equal(before, after, size);
        free(after);
        assert_int_equal(files_in_folder(), 1);
    }
    free(before);
    assert_int_equal(rle_mem_blocks(), blocks);
    unlink(path);
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    (void)state;
    const char *path = in_folder("disk");
    assert_int_equal(rle_safetensors_write(path, items, 4, NULL, 0), RLE_OK);
    static char big[1 << 20];
    rle_st_tensor large = {"big", RLE_U8, 1, {sizeof big}, big, sizeof big};
    struct rlimit old, small = {65536, 0};
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    rle_status status = rle_safetensors_write(path, &large, 1, NULL, 0);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_not_equal(status, RLE_OK);
    assert_non_null(strstr(rle_message(), "cannot write"));
    assert_int_equal(files_in_folder(), 1);
    rle_safetensors *st;
    assert_int_equal(rle_safetensors_open(path, &st), RLE_OK);
    assert_int_equal(rle_safetensors_count(st), 4);
    rle_safetensors_close(st);
    unlink(path);
}

static void what_cannot_be_written_is_refused(void **state)
{
    (void)state;
    const char *path = in_folder("refused");
    rle_st_tensor two[2] = {items[0], items[0]};
    assert_int_equal(rle_safetensors_write(path, two, 2, NULL, 0), RLE_INVALID_ARGUMENT);
    two[1].name = "__metadata__";
    assert_int_equal(rle_safetensors_write(path, two, 2, NULL, 0), RLE_INVALID_ARGUMENT);
    two[1].name = "\xff";
    assert_int_equal(rle_safetensors_write(path, two, 2, NULL, 0), RLE_INVALID_ARGUMENT);
    rle_st_pair pair = {"sha256", "x"};
    assert_int_equal(rle_safetensors_write(path, two, 1, &pair, 1), RLE_INVALID_ARGUMENT);
    static char long_text[RLE_SAFETENSORS_MAX_HEADER];
    memset(long_text, 'x', sizeof long_text - 1);
    pair = (rle_st_pair){"note", long_text};
    assert_int_equal(rle_safetensors_write(path, two, 1, &pair, 1), RLE_INVALID_ARGUMENT);
    assert_int_equal(files_in_folder(), 0);
    rle_safetensors *st;
    const char *nowhere = in_folder("no_such_folder/x");
    assert_int_equal(rle_safetensors_write(nowhere, two, 1, NULL, 0), RLE_NOT_FOUND);
    assert_int_equal(rle_safetensors_open(nowhere, &st), RLE_NOT_FOUND);
    assert_int_equal(rle_safetensors_open(folder, &st), RLE_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(good_headers_are_accepted),
        cmocka_unit_test(every_breach_is_data_loss),
        cmocka_unit_test(a_long_header_is_refused_before_memory_is_taken),
        cmocka_unit_test(damage_is_seen),
        cmocka_unit_test(random_headers_do_no_harm),
        cmocka_unit_test(full_memory_is_reported),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(what_cannot_be_written_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
