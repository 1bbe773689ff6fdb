/* stream.cc - streams and events.
 *
 * Eager: work runs when it is given to its stream. Lazy: as late as the rules allow, when
 * something waits for it; work of other streams then has not run unless an event says
 * that it must have. A program that is right on a device is right with both, one that
 * forgot to wait is not with the second.
 *
 * Work is taken from the front of a stream only, so a stream's order always holds. An
 * event counts its records; who waits for one waits for the count at that time. Waiting,
 * recording and destroying an event run nothing in a lazy stream; asking whether it has
 * happened runs one step, so that asking again and again comes to an end. */
#include <time.h>

#include <algorithm>
#include <deque>

#include "emu_internal.h"

namespace emu
{

struct Event_state {
    uint64_t recorded = 0, happened = 0;
    double at = 0; /* seconds, of the record that happened last */
    bool timed;
    Device *device;
    std::weak_ptr<Stream> stream; /* of the last record */
};

/* One piece of work: run something, or one of the two below. */
struct Work {
    std::function<void(Device *)> run;
    std::shared_ptr<Event_state> record, wait;
    uint64_t number = 0; /* of the record, or of the one waited for */
};

struct Stream {
    Device *device;
    bool blocking; /* in order with the default stream */
    bool destroyed = false;
    std::deque<Work> queue;
};

} // namespace emu

/* What the handles point to. */
struct emuStream {
    std::shared_ptr<emu::Stream> stream;
};
struct emuEvent {
    std::shared_ptr<emu::Event_state> state;
};

namespace emu
{

static double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

static void run_first(Stream *s);

static void run_until(Event_state *e, uint64_t number)
{
    while (e->happened < number) {
        std::shared_ptr<Stream> s = e->stream.lock();
        if (!s || s->queue.empty()) break;
        run_first(s.get());
    }
}

static void run_first(Stream *s)
{
    Work w = std::move(s->queue.front());
    s->queue.pop_front();
    if (w.wait) run_until(w.wait.get(), w.number);
    if (w.run && !s->device->ended) {
        Opened open(s->device);
        w.run(s->device);
    }
    if (w.record && w.record->happened < w.number) {
        w.record->happened = w.number;
        w.record->at = now();
    }
}

static void run_all(Stream *s)
{
    while (!s->queue.empty()) run_first(s);
}

static std::shared_ptr<Stream> default_stream(Device *d)
{
    if (!d->default_stream) {
        d->default_stream = std::make_shared<Stream>();
        d->default_stream->device = d;
        d->default_stream->blocking = true;
        d->streams.push_back(d->default_stream);
    }
    return d->default_stream;
}

static std::shared_ptr<Stream> stream_of(cudaStream_t s, Device *current)
{
    return s ? s->stream : default_stream(current);
}

/* Streams that were destroyed with work in them go when it is done. */
static void forget_destroyed(Device *d)
{
    auto gone = [](const std::shared_ptr<Stream> &s) {
        return s->destroyed && s->queue.empty();
    };
    d->streams.erase(std::remove_if(d->streams.begin(), d->streams.end(), gone),
                     d->streams.end());
}

/* All streams, each to its end, or at random in turns: nothing orders one against
 * another. */
void finish(Device *d)
{
    std::vector<std::shared_ptr<Stream>> all = d->streams;
    if (settings.order == REVERSE) std::reverse(all.begin(), all.end());
    while (settings.order == RANDOM) {
        std::vector<Stream *> busy;
        for (auto &s : all)
            if (!s->queue.empty()) busy.push_back(s.get());
        if (busy.empty()) break;
        run_first(busy[random_below(busy.size())]);
    }
    for (auto &s : all) run_all(s.get());
    forget_destroyed(d);
}

cudaError_t finish(cudaStream_t stream)
{
    std::shared_ptr<Stream> s = stream_of(stream, &devices[current_device]);
    run_all(s.get());
    return s->device->ended;
}

/* The default stream and blocking ones see each other's work as done. */
static void order_with_default(Stream *s)
{
    Device *d = s->device;
    if (!s->blocking || !d->default_stream) return;
    if (s != d->default_stream.get()) {
        run_all(d->default_stream.get());
        return;
    }
    for (auto &other : d->streams)
        if (other->blocking && other.get() != s) run_all(other.get());
}

static cudaError_t give(const std::shared_ptr<Stream> &s, Work &&w)
{
    order_with_default(s.get());
    s->queue.push_back(std::move(w));
    if (!settings.lazy) run_all(s.get());
    return cudaSuccess; /* what goes wrong in the work shows in a later call */
}

cudaError_t push(cudaStream_t stream, const std::function<void(Device *)> &run)
{
    Device *current = &devices[current_device];
    std::shared_ptr<Stream> s = stream_of(stream, current);
    if (s->device != current)
        return fail(cudaErrorInvalidResourceHandle,
                    "the stream is of device %d, current is device %d", s->device->index,
                    current->index);
    Work w;
    w.run = run;
    return give(s, std::move(w));
}

} // namespace emu

using namespace emu;

/* ---- streams ---- */

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    Device *d;
    cudaError_t e = enter("cudaStreamCreateWithFlags", &d, FAIL_STREAM);
    if (e != cudaSuccess) return e;
    if (flags & ~1u) return fail(cudaErrorInvalidValue, "flags of a stream: %x", flags);
    auto s = std::make_shared<Stream>();
    s->device = d;
    s->blocking = !(flags & cudaStreamNonBlocking);
    d->streams.push_back(s);
    *stream = new emuStream{s};
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    Device *d;
    cudaError_t e = enter("cudaStreamDestroy", &d);
    if (e != cudaSuccess) return e;
    if (!stream) return fail(cudaErrorInvalidResourceHandle, "the default stream stays");
    stream->stream->destroyed = true;
    forget_destroyed(stream->stream->device);
    delete stream;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    Device *d;
    cudaError_t e = enter("cudaStreamSynchronize", &d, FAIL_WAIT);
    if (e != cudaSuccess) return e;
    return finish(stream);
}

extern "C" cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    Device *d;
    cudaError_t e = enter("cudaStreamQuery", &d);
    if (e != cudaSuccess) return e;
    std::shared_ptr<Stream> s = stream_of(stream, d);
    if (s->queue.empty()) return s->device->ended;
    run_first(s.get());
    return fail(cudaErrorNotReady, "the stream has work left");
}

extern "C" cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                           unsigned)
{
    Device *d;
    cudaError_t e = enter("cudaStreamWaitEvent", &d, FAIL_EVENT);
    if (e != cudaSuccess) return e;
    if (!event) return fail(cudaErrorInvalidResourceHandle, "no event");
    Work w;
    w.wait = event->state;
    w.number = event->state->recorded;
    return give(stream_of(stream, d), std::move(w));
}

/* ---- events ---- */

extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    Device *d;
    cudaError_t e = enter("cudaEventCreateWithFlags", &d, FAIL_EVENT);
    if (e != cudaSuccess) return e;
    if (flags & ~3u) return fail(cudaErrorInvalidValue, "flags of an event: %x", flags);
    auto state = std::make_shared<Event_state>();
    state->device = d;
    state->timed = !(flags & cudaEventDisableTiming);
    *event = new emuEvent{state};
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

extern "C" cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t e = enter("cudaEventDestroy");
    if (e != cudaSuccess) return e;
    if (!event) return fail(cudaErrorInvalidResourceHandle, "no event");
    delete event;
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    Device *d;
    cudaError_t e = enter("cudaEventRecord", &d, FAIL_EVENT);
    if (e != cudaSuccess) return e;
    if (!event) return fail(cudaErrorInvalidResourceHandle, "no event");
    std::shared_ptr<Stream> s = stream_of(stream, d);
    if (s->device != event->state->device)
        return fail(cudaErrorInvalidResourceHandle,
                    "the event is of device %d, the stream of device %d",
                    event->state->device->index, s->device->index);
    Work w;
    w.record = event->state;
    w.number = ++event->state->recorded;
    event->state->stream = s;
    return give(s, std::move(w));
}

extern "C" cudaError_t cudaEventQuery(cudaEvent_t event)
{
    Device *d;
    cudaError_t e = enter("cudaEventQuery", &d, FAIL_EVENT);
    if (e != cudaSuccess) return e;
    Event_state *state = event->state.get();
    if (state->happened == state->recorded) return state->device->ended;
    std::shared_ptr<Stream> s = state->stream.lock();
    if (s && !s->queue.empty()) run_first(s.get());
    return fail(cudaErrorNotReady, "an event has not happened yet");
}

extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    Device *d;
    cudaError_t e = enter("cudaEventSynchronize", &d, FAIL_EVENT);
    if (e != cudaSuccess) return e;
    run_until(event->state.get(), event->state->recorded);
    return event->state->device->ended;
}

extern "C" cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    Device *d;
    cudaError_t e = enter("cudaEventElapsedTime", &d, FAIL_EVENT);
    if (e != cudaSuccess) return e;
    const Event_state *a = from->state.get(), *b = to->state.get();
    if (!a->timed || !b->timed || !a->recorded || !b->recorded)
        return fail(cudaErrorInvalidResourceHandle,
                    "an event that does not take the time, or was never recorded");
    if (a->happened < a->recorded || b->happened < b->recorded)
        return fail(cudaErrorNotReady, "an event has not happened yet");
    *ms = static_cast<float>((b->at - a->at) * 1e3);
    return cudaSuccess;
}
