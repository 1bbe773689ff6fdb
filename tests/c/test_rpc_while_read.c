/* test_rpc_while_read.c - long and short messages, several at once, to a worker that reads while
 * they are being sent: some of their bytes are written from where the caller has them, others are
 * copied first, and which ones is a matter of chance. What arrives is what was there at the call,
 * and calls come in the order in which they were made. */
#include <sys/prctl.h>
#include <sys/wait.h>

#include "rpc/crc32c.h"
#include "rpc_pair.h"

enum { CALLS = 40, AT_ONCE = 3, TENSORS = 5, MOST = 700 << 10 };

/* The other process: answers every call with the checksum of its tensors, one after the other,
 * and is now and then slow. */
static void serve_checksums(int to_parent, const char *address, const rle_tls_options *tls)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char bound[RLE_ADDRESS_MAX];
    rle_rpc *a = worker("a", &(rle_rpc_options){.tls = tls});
    if (rle_rpc_listen(a, address, bound) != RLE_OK ||
        write(to_parent, bound, sizeof bound) != sizeof bound)
        _exit(1);
    for (unsigned served = 0;;) {
        rle_incoming_info info;
        rle_decoder d;
        rle_value v;
        rle_rpc_turn(a, true);
        rle_incoming *in = rle_rpc_next_call(a, &info, &d);
        if (!in) continue;
        uint32_t crc = 0;
        for (int i = 0; i < info.head.args; i++) {
            if (rle_decode(&d, &v) != RLE_OK || v.kind != RLE_VALUE_TENSOR) _exit(2);
            crc = rle_crc32c(crc, v.u.tensor.data, v.u.tensor.size);
        }
        rle_encoder e;
        rle_encoder_init(&e);
        rle_encode_result_head(&e, 1);
        rle_encode_integer(&e, crc);
        if (rle_incoming_reply(a, in, &e) != RLE_OK) _exit(3);
        rle_encoder_fini(&e);
        if (++served % 7 == 0) usleep(3000);
    }
}

static uint64_t chance = 88172645463325252u;

static size_t below(size_t n)
{
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return (size_t)(chance % n);
}

/* A call with some tensors, whose memory is changed when it was made. */
static rle_future *send_some(rle_rpc *b, rle_peer *to, uint32_t *crc)
{
    uint8_t *data[TENSORS];
    size_t size[TENSORS];
    int count = 1 + (int)below(TENSORS);
    rle_encoder e;
    rle_encoder_init(&e);
    begin_call(&e, "put", count);
    *crc = 0;
    for (int i = 0; i < count; i++) {
        size[i] = 1 + below(below(3) ? MOST : 3000);
        data[i] = calloc(1, size[i]);
        for (size_t k = 0; k < size[i]; k += 1 + below(9)) data[i][k] = (uint8_t)chance;
        *crc = rle_crc32c(*crc, data[i], size[i]);
        rle_array t = {.data = data[i], .dtype = RLE_U8, .ndim = 1, .shape = {(int64_t)size[i]}};
        rle_array_set_contiguous(&t);
        assert_int_equal(rle_encode_tensor(&e, &t, NULL), RLE_OK);
    }
    rle_future *f = call_with(b, to, "put", &e, 0, false);
    rle_encoder_fini(&e);
    for (int i = 0; i < count; i++) {
        memset(data[i], 0xA5, size[i]);
        free(data[i]);
    }
    return f;
}

static void exchange(const char *address, const rle_tls_options *tls)
{
    int ready[2];
    char bound[RLE_ADDRESS_MAX];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) serve_checksums(ready[1], address, tls);
    assert_int_equal(read(ready[0], bound, sizeof bound), sizeof bound);
    size_t bytes = rle_mem_bytes();
    rle_rpc *b = worker("b", &(rle_rpc_options){.tls = tls});
    rle_peer *to = NULL;
    assert_int_equal(rle_rpc_connect(b, bound, 10 * RLE_SECONDS, &to), RLE_OK);
    for (int made = 0; made < CALLS; made += AT_ONCE) {
        uint32_t crc[AT_ONCE];
        rle_future *f[AT_ONCE];
        rle_wire_error err;
        for (int i = 0; i < AT_ONCE; i++) f[i] = send_some(b, to, &crc[i]);
        for (int i = 0; i < AT_ONCE; i++) {
            while (rle_future_status(b, f[i]) == RLE_FUTURE_PENDING) rle_rpc_turn(b, true);
            if (rle_future_status(b, f[i]) != RLE_FUTURE_DONE)
                fail_msg("%s", error_of(f[i], &err));
            assert_int_equal(result_of(f[i]), crc[i]);
            rle_future_release(b, f[i]);
        }
    }
    rle_rpc_free(b);
    assert_int_equal(rle_mem_bytes(), bytes);
    close(ready[0]);
    close(ready[1]);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    if (strncmp(bound, "unix:", 5) == 0) unlink(bound + 5);
}

static void over_a_unix_socket(void **state)
{
    (void)state;
    exchange(test_address, NULL);
}

static void over_tcp_with_checksums(void **state)
{
    (void)state;
    exchange("tcp://127.0.0.1:0", NULL);
}

static void over_tls(void **state)
{
    (void)state;
    exchange("tcp://127.0.0.1:0", &(rle_tls_options){.psk = true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(over_a_unix_socket, pair_setup, pair_teardown),
        cmocka_unit_test_setup_teardown(over_tcp_with_checksums, pair_setup, pair_teardown),
        cmocka_unit_test_setup_teardown(over_tls, pair_setup, pair_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
