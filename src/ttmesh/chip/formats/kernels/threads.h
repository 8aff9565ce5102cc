/* Work shared by threads inside one call. The caller's interpreter cannot act before the call returns, and it returns when
 * all threads are done: no signal or exception can free what they write. */
#pragma once
#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#define MOST_THREADS 256

typedef struct {
    /* OpenMP's GOMP_parallel, so that the team is the one that the rest of the process computes with; 0: threads of its own */
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int64_t count, step;
} Threads;

/* Threads take steps in turn, so that the others do the work of one that wakes late. */
typedef struct {
    void (*run)(const void *work, int64_t begin, int64_t end);
    const void *work;
    int64_t count, step, next;
} Shared;

static void take_steps(void *data) {
    Shared *shared = data;
    for (;;) {
        const int64_t begin = __atomic_fetch_add(&shared->next, shared->step, __ATOMIC_RELAXED);
        if (begin >= shared->count) return;
        const int64_t rest = shared->count - begin;
        shared->run(shared->work, begin, begin + (rest < shared->step ? rest : shared->step));
    }
}

static void *start_thread(void *data) {
    take_steps(data);
    return 0;
}

static void run_own_threads(Shared *shared, int64_t count) {
    pthread_t others[MOST_THREADS];
    int64_t started = 0;
    sigset_t all, before; /* signals stay with the threads that the interpreter knows */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < count - 1 && started < MOST_THREADS) {
        if (pthread_create(&others[started], 0, start_thread, shared)) break; /* fewer do it as well */
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
    take_steps(shared);
    for (int64_t i = 0; i < started; i++) pthread_join(others[i], 0);
}

/* run(work, begin, end) over [0, count). */
static void share(const Threads *threads, int64_t count, void (*run)(const void *, int64_t, int64_t), const void *work) {
    if (threads->count <= 1) {
        run(work, 0, count);
        return;
    }
    Shared shared = {run, work, count, threads->step, 0};
    if (threads->parallel) threads->parallel(take_steps, &shared, (unsigned)threads->count, 0);
    else run_own_threads(&shared, threads->count);
}
