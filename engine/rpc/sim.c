/* sim.c - the seed and what is drawn from it, the clock, the record of what happened. */
#include "rpc/sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "rpc/sim_internal.h"

rle_sim rle_sim_world;

/* ---- chance: xoshiro256**, seeded by splitmix64 ---- */

static uint64_t rotate(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static uint64_t draw(uint64_t s[4])
{
    uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

static void seed(uint64_t s[4], uint64_t from)
{
    for (int i = 0; i < 4; i++) {
        from += UINT64_C(0x9e3779b97f4a7c15);
        uint64_t z = from;
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        s[i] = z ^ z >> 31;
    }
}

uint64_t rle_sim_bits(void)
{
    return draw(rle_sim_world.rng);
}

uint64_t rle_sim_random(uint64_t n)
{
    return n ? (uint64_t)((unsigned __int128)rle_sim_bits() * n >> 64) : 0;
}

int64_t rle_sim_between(int64_t low, int64_t high)
{
    return low + (int64_t)rle_sim_random((uint64_t)(high - low) + 1);
}

bool rle_sim_chance(int of_1000)
{
    return rle_sim_random(1000) < (uint64_t)of_1000;
}

/* ---- the world ---- */

/* Looking at the clock takes time too, or whoever waits for it to move would wait for
 * ever. */
static int64_t sim_now(void *self)
{
    (void)self;
    rle_sim_process *p = rle_sim_world.running;
    if (p) p->ahead += 20;
    return RLE_SIM_EPOCH + rle_sim_time();
}

/* Of its own stream: how many bytes are asked for must not change what else happens. */
void rle_sim_entropy(void *out, size_t size)
{
    uint8_t *p = out;
    for (; size; size -= size < 8 ? size : 8, p += 8) {
        uint64_t word = draw(rle_sim_world.entropy);
        memcpy(p, &word, size < 8 ? size : 8);
    }
}

/* ---- the record ---- */

void rle_sim_note(const char *what, int64_t a, int64_t b, int64_t c)
{
    rle_sim *s = &rle_sim_world;
    uint64_t h = s->sum.trace;
    int64_t at = rle_sim_time();
    int who = s->running ? s->running->number : 0;
    const int64_t words[] = {at, who, a, b, c};
    for (const char *p = what; *p; p++)
        h = (h ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        h = (h ^ (uint64_t)words[i] ^ h >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    s->sum.trace = h;
    if (!s->o.event) return;
    char line[256];
    snprintf(line, sizeof line, "%.9f %s %s %" PRId64 " %" PRId64 " %" PRId64,
             (double)at / RLE_SECONDS, s->running ? s->running->name : "-", what, a, b,
             c);
    s->o.event(s->o.self, line);
}

/* ---- options ---- */

static const char *const fault_names[RLE_SIM_FAULTS] = {
    "cut", "half_open", "partition", "refuse", "slow", "stop", "kill"};

const char *rle_sim_fault_name(rle_sim_fault fault)
{
    return fault_names[fault];
}

static rle_status parse_one(const char *word, size_t n, rle_sim_options *o)
{
    const char *equals = memchr(word, '=', n);
    size_t name = equals ? (size_t)(equals - word) : n;
    double value = 10;
    if (equals) {
        char number[32], *end;
        size_t length = n - name - 1;
        snprintf(number, sizeof number, "%.*s", (int)(length < 31 ? length : 31),
                 equals + 1);
        value = strtod(number, &end);
        if (*end || !length || !(value > 0 && value < 1e9))
            return rle_fail(
                RLE_INVALID_ARGUMENT,
                "faults: \"%.*s\": what stands behind \"=\" must be a number > 0",
                (int)(n < 80 ? n : 80), word);
    }
    if (name == 4 && memcmp(word, "none", 4) == 0 && !equals) return RLE_OK;
    bool hours = name == 5 && memcmp(word, "hours", 5) == 0;
    if (equals && (hours || (name == 4 && memcmp(word, "from", 4) == 0))) {
        *(hours ? &o->hours : &o->from) = value;
        return RLE_OK;
    }
    bool all = name == 3 && memcmp(word, "all", 3) == 0, known = all;
    for (int i = 0; i < RLE_SIM_FAULTS; i++) {
        if (!all &&
            (strlen(fault_names[i]) != name || memcmp(word, fault_names[i], name) != 0))
            continue;
        o->every[i] = value;
        known = true;
    }
    if (known) return RLE_OK;
    return rle_fail(
        RLE_INVALID_ARGUMENT,
        "faults: unknown \"%.*s\"; there are cut, half_open, partition, refuse, slow, "
        "stop, kill, all and none, each perhaps with the mean seconds from one to the "
        "next (cut=20), from=N and hours=N",
        (int)(n < 80 ? n : 80), word);
}

rle_status rle_sim_parse_faults(const char *text, rle_sim_options *o)
{
    rle_sim_options fresh = *o;
    while (*text) {
        size_t n = strcspn(text, ",");
        RLE_TRY(parse_one(text, n, &fresh));
        text += n + (text[n] == ',');
    }
    *o = fresh;
    return RLE_OK;
}

/* ---- life ---- */

rle_status rle_sim_begin(const rle_sim_options *o)
{
    rle_sim *s = &rle_sim_world;
    memset(s, 0, sizeof *s);
    s->o = *o;
    if (!s->o.hours) s->o.hours = 24;
    seed(s->rng, o->seed);
    seed(s->entropy, ~o->seed);
    void *section;
    size_t size;
    rle_process_section(&section, &size);
    s->image = rle_malloc(size);
    s->outside = rle_malloc(size);
    if (!s->image || !s->outside) {
        rle_free(s->image);
        rle_free(s->outside);
        return rle_oom(size, "simulation");
    }
    memcpy(s->image, section, size);
    s->out = stdout;
    s->err = stderr;
    rle_sim_faults_begin();
    rle_clock_set(&(rle_clock){sim_now, NULL});
    rle_world_simulated = &rle_sim_as_world;
    return RLE_OK;
}

void rle_sim_end(rle_sim_summary *out)
{
    rle_sim *s = &rle_sim_world;
    rle_sim_free_processes();
    rle_sim_net_free();
    rle_sim_free_texts();
    s->sum.time = s->now;
    for (int i = 0; i < RLE_SIM_FAULTS; i++) s->sum.all_faults += s->sum.faults[i];
    if (out) *out = s->sum;
    rle_free(s->image);
    rle_free(s->outside);
    rle_world_simulated = NULL;
    rle_clock_set(NULL);
}
