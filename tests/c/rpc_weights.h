/* rpc_weights.h - versions for followers, published and taken, with bytes that tell whether they
 * are whole. */
#ifndef RLE_TESTS_RPC_WEIGHTS_H
#define RLE_TESTS_RPC_WEIGHTS_H

#include "rpc_pair.h"

/* The next version, of n bytes, all of them its number. */
static inline void stage(rle_publication *p, size_t n, bool certain)
{
    rle_publication_info info;
    rle_publication_look(p, &info);
    rle_encoder e;
    rle_encoder_init(&e);
    rle_encoder_reset(&e);
    rle_encode_result_head(&e, 2);
    rle_encode_integer(&e, (int64_t)info.version + 1);
    uint8_t none;
    rle_array a = {.data = &none, .dtype = RLE_U8, .ndim = 1, .shape = {(int64_t)n}};
    rle_array_set_contiguous(&a);
    assert_int_equal(rle_encode_tensor(&e, &a, NULL), RLE_OK);
    uint8_t *to = NULL;
    assert_int_equal(rle_publication_stage(p, &e, certain, &to), RLE_OK);
    memset(to, (int)(info.version + 1) & 0xff, n);
    rle_encoder_fini(&e);
}

static inline uint64_t publish(rle_publication *p, size_t n)
{
    stage(p, n, true);
    return rle_publication_commit(p);
}

/* The newest version that has arrived, its bytes checked; 0: none. */
static inline uint64_t take(rle_follower *fo, size_t n)
{
    rle_msg m;
    uint64_t version = rle_follower_take(fo, &m);
    if (!version) return 0;
    rle_decoder d;
    uint16_t count;
    rle_value v;
    rle_msg_decoder(&m, &d);
    assert_int_equal(rle_decode_result_head(&d, &count), RLE_OK);
    assert_int_equal(count, 2);
    assert_int_equal(rle_decode(&d, &v), RLE_OK);
    assert_int_equal(v.u.integer, version);
    assert_int_equal(rle_decode(&d, &v), RLE_OK);
    assert_int_equal(v.u.tensor.size, n);
    const uint8_t *bytes = v.u.tensor.data;
    for (size_t i = 0; i < n; i += n / 997 + 1) assert_int_equal(bytes[i], version & 0xff);
    rle_follower_done(fo);
    return version;
}

static inline void turns(pair *p, int n)
{
    for (int i = 0; i < n; i++) turn(p->a, p->b);
}

static inline uint64_t arrives(pair *p, rle_follower *fo, size_t n)
{
    uint64_t version = 0;
    for (int i = 0; i < 4000 && !version; i++) {
        turn(p->a, p->b);
        version = take(fo, n);
    }
    return version;
}

static inline rle_publication *open_weights(rle_rpc *rpc, const char *name, const char *from)
{
    rle_publication *p = NULL;
    assert_int_equal(rle_publication_new(rpc, name, from, 0, &p), RLE_OK);
    return p;
}

static inline rle_follower *follow(rle_rpc *rpc, rle_peer *peer, const char *name)
{
    rle_follower *fo = NULL;
    assert_int_equal(rle_follower_new(rpc, peer, name, &fo), RLE_OK);
    return fo;
}

#endif
