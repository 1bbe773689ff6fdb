/* fiber.cc - stacks with a guard page below, and the switch: own assembly on x86-64 and
 * aarch64, ucontext elsewhere. AddressSanitizer is told of every switch. */
#include "fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "emu_internal.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#define RLE_EMU_UCONTEXT 1
#endif
#ifdef RLE_EMU_UCONTEXT
#include <ucontext.h>
#endif
#ifdef RLE_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emu
{

#ifdef RLE_EMU_ASAN
enum { STACK_SIZE = 256 << 10 };
#else
enum { STACK_SIZE = 64 << 10 };
#endif

#ifdef RLE_EMU_UCONTEXT
typedef ucontext_t Context;
#else
struct Context {
    void *sp;
};
#endif

struct Fiber {
    Context context;
    char *pages; /* guard page, then the stack */
    char *stack;
    void (*body)();
    Left left;        /* how it left last */
    void *fake_stack; /* AddressSanitizer's */
};

uint64_t fiber_switches;

static Context scheduler;
static Fiber *running_fiber;
/* Not destroyed at exit: fibers belong to the process. */
static std::vector<Fiber *> &kept = *new std::vector<Fiber *>();
#ifdef RLE_EMU_ASAN
static const void *scheduler_stack;
static size_t scheduler_size;
static void *scheduler_fake;
#endif

/* ---- the switch ---- */

#if defined(RLE_EMU_UCONTEXT)
static void switch_to(Context *save, Context *load)
{
    swapcontext(save, load);
}
#else
extern "C" void rle_emu_switch(void **save, void *load);
#if defined(__x86_64__)
asm(R"(
    .text
    .hidden rle_emu_switch
    .globl rle_emu_switch
    .type rle_emu_switch,@function
rle_emu_switch:
    endbr64
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size rle_emu_switch, .-rle_emu_switch
)");
enum { SAVED_WORDS = 6 };
#else
asm(R"(
    .text
    .hidden rle_emu_switch
    .globl rle_emu_switch
    .type rle_emu_switch,%function
rle_emu_switch:
    stp x29, x30, [sp, #-160]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x29, x30, [sp], #160
    ret
    .size rle_emu_switch, .-rle_emu_switch
)");
enum { SAVED_WORDS = 20 };
#endif
static void switch_to(Context *save, Context *load)
{
    rle_emu_switch(&save->sp, load->sp);
}
#endif

/* ---- in a fiber ---- */

static void to_scheduler(Fiber *f, Left how)
{
    f->left = how;
#ifdef RLE_EMU_ASAN
    __sanitizer_start_switch_fiber(how == QUIT ? nullptr : &f->fake_stack,
                                   scheduler_stack, scheduler_size);
    switch_to(&f->context, &scheduler);
    __sanitizer_finish_switch_fiber(f->fake_stack, &scheduler_stack, &scheduler_size);
#else
    switch_to(&f->context, &scheduler);
#endif
}

static void fiber_main()
{
#ifdef RLE_EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
    for (;;) {
        Fiber *f = running_fiber;
        f->body();
        to_scheduler(f, FINISHED);
    }
}

Fiber *fiber_running()
{
    return running_fiber;
}

void fiber_leave()
{
    to_scheduler(running_fiber, WAITS);
}

void fiber_quit()
{
    to_scheduler(running_fiber, QUIT);
    abort(); /* nobody resumes it */
}

bool fiber_overflows(const void *p)
{
    const char *at = static_cast<const char *>(p);
    return running_fiber && at >= running_fiber->pages && at < running_fiber->stack;
}

/* ---- in the scheduler ---- */

Left fiber_resume(Fiber *f)
{
    running_fiber = f;
    fiber_switches++;
#ifdef RLE_EMU_ASAN
    __sanitizer_start_switch_fiber(&scheduler_fake, f->stack, STACK_SIZE);
    switch_to(&scheduler, &f->context);
    __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#else
    switch_to(&scheduler, &f->context);
#endif
    running_fiber = nullptr;
    return f->left;
}

static Fiber *make_fiber()
{
    Fiber *f = new Fiber();
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *m = mmap(nullptr, STACK_SIZE + page, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED || mprotect(m, page, PROT_NONE) != 0) {
        perror("emulated device: no memory for the stack of a thread");
        abort();
    }
    f->pages = static_cast<char *>(m);
    f->stack = f->pages + page;
#ifdef RLE_EMU_UCONTEXT
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_SIZE;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#else
    void **sp = reinterpret_cast<void **>(f->stack + STACK_SIZE);
#ifdef __x86_64__
    *--sp = nullptr; /* fiber_main's caller: there is none */
    *--sp = reinterpret_cast<void *>(fiber_main);
    for (int i = 0; i < SAVED_WORDS; i++) *--sp = nullptr;
#else
    for (int i = 0; i < SAVED_WORDS; i++) *--sp = nullptr;
    sp[1] = reinterpret_cast<void *>(fiber_main); /* x30 */
#endif
    f->context.sp = sp;
#endif
    return f;
}

Fiber *fiber_take(void (*body)())
{
    Fiber *f;
    if (kept.empty()) {
        f = make_fiber();
    } else {
        f = kept.back();
        kept.pop_back();
    }
    f->body = body;
    return f;
}

void fiber_keep(Fiber *f)
{
    kept.push_back(f);
}

void fiber_drop(Fiber *f)
{
#ifdef RLE_EMU_ASAN
    __asan_unpoison_memory_region(f->stack, STACK_SIZE);
#endif
    munmap(f->pages, STACK_SIZE + static_cast<size_t>(f->stack - f->pages));
    delete f;
}

} // namespace emu
