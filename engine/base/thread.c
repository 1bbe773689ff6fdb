/* thread.c - see thread.h. */
#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/fault.h"

enum { STACK_SIZE = 512 << 10 };

rle_status rle_thread_start(void *(*run)(void *self), void *self, const char *what,
                            pthread_t *out)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    /* A thread begins with the signals blocked that are blocked where it is made. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_SIZE);
    if (!out) pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int why = rle_fault_io(EAGAIN) ? EAGAIN : pthread_create(&thread, &attr, run, self);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (why != 0)
        return rle_fail(RLE_RESOURCE_EXHAUSTED, "no thread for %s: %s", what,
                        strerror(why));
    if (out) *out = thread;
    return RLE_OK;
}
