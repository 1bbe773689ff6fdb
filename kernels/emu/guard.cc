/* guard.cc - who may touch device memory, and what happens to who does not.
 *
 * A real device's memory is no memory to the host, and not to another device's kernels.
 * Where the processor has memory protection keys each emulated device has one: its memory
 * is open to this thread only while work of that device runs. Elsewhere it is always open
 * (guarded() says which).
 *
 * A kernel that reads or writes what is no memory, overflows its stack or divides by zero
 * is stopped by a signal; the signal ends the kernel and the device with the error that a
 * real device has for it. Under AddressSanitizer, which reports more, signals are left to
 * it. */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emu_control.h"
#include "emu_internal.h"
#include "fiber.h"

#if defined(__linux__) && defined(__x86_64__) && defined(PKEY_DISABLE_ACCESS)
#define RLE_EMU_KEYS 1
#endif

namespace emu
{

/* ---- keys ---- */

static int key_of[MOST_DEVICES]; /* 0: none */
static const Device *open_device;
static bool keys_tried, keys_work;

#ifdef RLE_EMU_KEYS
static void take_keys()
{
    if (keys_tried) return;
    keys_tried = keys_work = true;
    for (int d = 0; d < settings.devices && keys_work; d++) {
        key_of[d] = pkey_alloc(0, PKEY_DISABLE_ACCESS);
        if (key_of[d] < 0) keys_work = false;
    }
    if (!keys_work)
        for (int &key : key_of) key = 0;
}

static void set_access(const Device *device, bool open)
{
    if (keys_work && device)
        pkey_set(key_of[device->index],
                 open || !settings.guard ? 0 : PKEY_DISABLE_ACCESS);
}

static bool protect(const Device *device, char *p, size_t size)
{
    int key = keys_work ? key_of[device->index] : -1;
    return pkey_mprotect(p, size, PROT_READ | PROT_WRITE, key) == 0;
}
#else
static void take_keys()
{
    keys_tried = true;
}
static void set_access(const Device *, bool) {}
static bool protect(const Device *, char *p, size_t size)
{
    return mprotect(p, size, PROT_READ | PROT_WRITE) == 0;
}
#endif

bool guarded()
{
    return keys_work && settings.guard;
}

Opened::Opened(const Device *device) : before(open_device)
{
    set_access(before, false);
    set_access(device, true);
    open_device = device;
}

Opened::~Opened()
{
    set_access(open_device, false);
    set_access(before, true);
    open_device = before;
}

bool commit(Device *device, char *p, size_t size)
{
    take_keys();
    return protect(device, p, size);
}

void decommit(char *p, size_t size)
{
    madvise(p, size, MADV_DONTNEED);
    mprotect(p, size, PROT_NONE);
}

/* ---- signals ---- */

#ifdef RLE_EMU_ASAN
void catch_signals() {}
#else

enum { SIGNALS = 3, SIGNAL_STACK = 64 << 10 };
static const int caught[SIGNALS] = {SIGSEGV, SIGBUS, SIGFPE};
static struct sigaction action_before[SIGNALS];
static stack_t stack_before;

static void explain(int signal, const siginfo_t *info)
{
    const char *where = running_where();
    const Device *owner = device_of_address(info->si_addr);
    if (signal == SIGFPE)
        end_device(running_on, cudaErrorLaunchFailure,
                   "%s, thread (%u,%u,%u): an integer is divided by zero", where,
                   thread_index.x, thread_index.y, thread_index.z);
    else if (fiber_overflows(info->si_addr))
        end_device(running_on, cudaErrorHardwareStackError,
                   "%s, thread (%u,%u,%u): its stack is full", where, thread_index.x,
                   thread_index.y, thread_index.z);
    else if (signal == SIGSEGV && info->si_code == SI_KERNEL)
        end_device(running_on, cudaErrorMisalignedAddress,
                   "%s, thread (%u,%u,%u): an address that is not aligned, or not one",
                   where, thread_index.x, thread_index.y, thread_index.z);
    else if (owner && owner != running_on)
        end_device(
            running_on, cudaErrorIllegalAddress,
            "%s, thread (%u,%u,%u): address %p is of device %d, the kernel runs on "
            "device %d",
            where, thread_index.x, thread_index.y, thread_index.z, info->si_addr,
            owner->index, running_on->index);
    else
        end_device(running_on, cudaErrorIllegalAddress,
                   "%s, thread (%u,%u,%u): nothing is at address %p", where,
                   thread_index.x, thread_index.y, thread_index.z, info->si_addr);
}

static void release_signals()
{
    for (int i = 0; i < SIGNALS; i++) sigaction(caught[i], &action_before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
}

/* On its own stack, with the interrupted kernel's below the current one. It does not
 * return: the kernel's fiber is left for good. The signal is not blocked (SA_NODEFER), so
 * that there is no mask to restore. */
static void on_signal(int signal, siginfo_t *info, void *)
{
    if (!fiber_running()) { /* not the kernel's: as if nobody had caught it */
        release_signals();
        return; /* and it happens again */
    }
    explain(signal, info);
    fiber_quit();
}

/* Ours stay set between launches. Whoever else sets handlers, a test or the host program,
 * has them until the next launch: one look tells. */
void catch_signals()
{
    struct sigaction now;
    if (sigaction(caught[0], nullptr, &now) == 0 && now.sa_sigaction == on_signal) return;
    static char *stack = static_cast<char *>(malloc(SIGNAL_STACK));
    stack_t s = {};
    s.ss_sp = stack;
    s.ss_size = SIGNAL_STACK;
    sigaltstack(&s, &stack_before);
    for (int i = 0; i < SIGNALS; i++) {
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(caught[i], &action, &action_before[i]);
    }
}
#endif

} // namespace emu

extern "C" bool rle_emu_guarded(void)
{
    return emu::guarded();
}
