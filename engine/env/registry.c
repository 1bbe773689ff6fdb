/* registry.c - the environments that are known by an id: the engine's own, and those
 * that a program registered. The list is the only state this layer keeps between
 * calls. */
#include "env/env.h"

#include <string.h>

#include "base/mem.h"

static const rle_env_ops *const built_in[] = {
    &rle_env_cartpole_v1,
    &rle_env_cartpole_v0,
};
enum { BUILT_IN = sizeof built_in / sizeof built_in[0], ID_MAX = 64 };

static const rle_env_ops **registered; /* NULL while there is none */
static int64_t registered_count;

const rle_env_ops *rle_env_at(int64_t i)
{
    if (i < 0) return NULL;
    if (i < BUILT_IN) return built_in[i];
    return i - BUILT_IN < registered_count ? registered[i - BUILT_IN] : NULL;
}

const rle_env_ops *rle_env_find(const char *id)
{
    const rle_env_ops *ops;
    for (int64_t i = 0; (ops = rle_env_at(i)); i++)
        if (strcmp(ops->id, id) == 0) return ops;
    return NULL;
}

static rle_status check_ops(const rle_env_ops *ops)
{
    if (!ops->id || !ops->id[0] || strlen(ops->id) > ID_MAX)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "an environment needs an id of 1 to %d characters", ID_MAX);
    for (const char *c = ops->id; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f)
            return rle_fail(RLE_INVALID_ARGUMENT,
                            "environment id \"%s\": no spaces or control characters",
                            ops->id);
    if (!ops->reset || !ops->step || !ops->observation_space || !ops->action_space)
        return rle_fail(RLE_INVALID_ARGUMENT,
                        "environment %s: reset, step, observation_space and action_space "
                        "must be given",
                        ops->id);
    const rle_space *spaces[2] = {ops->observation_space, ops->action_space};
    for (int i = 0; i < 2; i++) {
        rle_status status = rle_space_check(spaces[i]);
        if (status != RLE_OK)
            return rle_fail(status, "environment %s: %s space: %s", ops->id,
                            i ? "action" : "observation", rle_message());
    }
    if (ops->max_episode_steps < 0)
        return rle_fail(
            RLE_INVALID_ARGUMENT,
            "environment %s: max_episode_steps is %lld; 0 stands for no limit", ops->id,
            (long long)ops->max_episode_steps);
    return RLE_OK;
}

rle_status rle_env_register(const rle_env_ops *ops)
{
    RLE_TRY(check_ops(ops));
    if (rle_env_find(ops->id))
        return rle_fail(RLE_ALREADY_EXISTS, "environment %s is registered already",
                        ops->id);
    size_t size = ((size_t)registered_count + 1) * sizeof *registered;
    const rle_env_ops **more = rle_realloc(registered, size);
    if (!more) return rle_oom(size, "registry of environments");
    registered = more;
    registered[registered_count++] = ops;
    return RLE_OK;
}

rle_status rle_env_unregister(const char *id)
{
    for (int64_t i = 0; i < registered_count; i++) {
        if (strcmp(registered[i]->id, id) != 0) continue;
        registered_count--;
        memmove(registered + i, registered + i + 1,
                (size_t)(registered_count - i) * sizeof *registered);
        if (!registered_count) {
            rle_free(registered);
            registered = NULL;
        }
        return RLE_OK;
    }
    if (rle_env_find(id))
        return rle_fail(RLE_FAILED_PRECONDITION, "environment %s is built in and stays",
                        id);
    return rle_fail(RLE_NOT_FOUND, "no environment %s is registered", id);
}

/* Every id, ", " between, cut with "..." when `out` is full. */
static void list_ids(char *out, size_t size)
{
    const rle_env_ops *ops;
    size_t used = 0;
    out[0] = 0;
    for (int64_t i = 0; (ops = rle_env_at(i)); i++) {
        size_t n = strlen(ops->id);
        if (used + n + 8 > size) {
            memcpy(out + used, ", ...", sizeof ", ...");
            return;
        }
        if (i) memcpy(out + used, ", ", 2), used += 2;
        memcpy(out + used, ops->id, n + 1);
        used += n;
    }
}

rle_status rle_env_make(const char *id, rle_env **out)
{
    const rle_env_ops *ops = rle_env_find(id);
    if (!ops) {
        char known[512];
        list_ids(known, sizeof known);
        return rle_fail(RLE_NOT_FOUND, "no environment \"%.64s\"; there are: %s", id,
                        known);
    }
    return rle_env_new(ops, -1, out);
}
