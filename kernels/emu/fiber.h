/* fiber.h - stacks on which threads of a block run, and the switch between them.
 *
 * The scheduler resumes a fiber; the fiber leaves, back to the scheduler. Fibers never
 * switch to each other. */
#ifndef RLE_EMU_FIBER_H
#define RLE_EMU_FIBER_H

#include <stddef.h>
#include <stdint.h>

namespace emu
{

struct Fiber;

/* A fiber that is about to call `body`; it is resumed for the first time then. `body` may
 * be called again and again, each time when the fiber is resumed after it returned. */
Fiber *fiber_take(void (*body)());
/* Its body has returned: keep it for the next one. */
void fiber_keep(Fiber *f);
/* It left inside its body and will never be resumed. */
void fiber_drop(Fiber *f);

/* From the scheduler. Returns when the fiber leaves, and says how: its body has returned,
 * it waits, or it quit. */
enum Left { FINISHED, WAITS, QUIT };
Left fiber_resume(Fiber *f);
/* From a fiber: the one that runs; NULL in the scheduler. */
Fiber *fiber_running();
/* From a fiber: wait until resumed. */
void fiber_leave();
/* From a fiber or a signal's handler that interrupted it: leave for good. */
void fiber_quit() __attribute__((noreturn));
/* Does the address lie in the guard page below the running fiber's stack? */
bool fiber_overflows(const void *p);

extern uint64_t fiber_switches;

} // namespace emu

#endif
