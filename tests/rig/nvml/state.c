/* The text file that describes the GPUs, and the lock around what was read from it. */
#include "state.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

State state;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int users; /* nvmlInit calls that no nvmlShutdown has answered */

typedef enum { NUMBER, HEX, TEXT } Kind;
typedef struct {
    const char *key;
    Kind kind;
    size_t offset;
} Field;

static const Field SYSTEM_FIELDS[] = {
    {"driver", TEXT, offsetof(State, driver_version)},
    {"nvml", TEXT, offsetof(State, nvml_version)},
    {"cuda", NUMBER, offsetof(State, cuda_version)},
    {"init_error", NUMBER, offsetof(State, init_error)},
    {"hang_ms", NUMBER, offsetof(State, hang_ms)},
    {0},
};
static const Field GPU_FIELDS[] = {
    {"uuid", TEXT, offsetof(Gpu, uuid)},
    {"name", TEXT, offsetof(Gpu, name)},
    {"serial", TEXT, offsetof(Gpu, serial)},
    {"minor", NUMBER, offsetof(Gpu, minor)},
    {"bus", HEX, offsetof(Gpu, bus)},
    {"numa", NUMBER, offsetof(Gpu, numa)},
    {"mem_total", NUMBER, offsetof(Gpu, memory_total)},
    {"mem_used", NUMBER, offsetof(Gpu, memory_used)},
    {"util", NUMBER, offsetof(Gpu, utilization)},
    {"memutil", NUMBER, offsetof(Gpu, memory_utilization)},
    {"temp", NUMBER, offsetof(Gpu, temperature)},
    {"power", NUMBER, offsetof(Gpu, power)},
    {"plimit", NUMBER, offsetof(Gpu, power_limit)},
    {"fan", NUMBER, offsetof(Gpu, fan)},
    {"pstate", NUMBER, offsetof(Gpu, performance_state)},
    {"persist", NUMBER, offsetof(Gpu, persistence)},
    {"throttle", NUMBER, offsetof(Gpu, throttle)},
    {"ecc", NUMBER, offsetof(Gpu, ecc)},
    {"ecc_corr", NUMBER, offsetof(Gpu, ecc_corrected)},
    {"ecc_unc", NUMBER, offsetof(Gpu, ecc_uncorrected)},
    {"ecc_unc_agg", NUMBER, offsetof(Gpu, ecc_uncorrected_ever)},
    {"remap_corr", NUMBER, offsetof(Gpu, remap_corrected)},
    {"remap_unc", NUMBER, offsetof(Gpu, remap_uncorrected)},
    {"remap_pending", NUMBER, offsetof(Gpu, remap_pending)},
    {"remap_fail", NUMBER, offsetof(Gpu, remap_failed)},
    {"retired_pending", NUMBER, offsetof(Gpu, retired_pending)},
    {"nvlink", NUMBER, offsetof(Gpu, links)},
    {"nvlink_down", NUMBER, offsetof(Gpu, link_down)},
    {"mig", NUMBER, offsetof(Gpu, mig)},
    {"mig_pending", NUMBER, offsetof(Gpu, mig_pending)},
    {"lost", NUMBER, offsetof(Gpu, lost)},
    {"err", NUMBER, offsetof(Gpu, error)},
    {0},
};
static const Field SLICE_FIELDS[] = {
    {"uuid", TEXT, offsetof(Slice, uuid)},
    {"idx", NUMBER, offsetof(Slice, index)},
    {"gi", NUMBER, offsetof(Slice, gpu_instance)},
    {"ci", NUMBER, offsetof(Slice, compute_instance)},
    {"slices", NUMBER, offsetof(Slice, slices)},
    {"mem", NUMBER, offsetof(Slice, memory)},
    {0},
};
static const Field PROCESS_FIELDS[] = {
    {"pid", NUMBER, offsetof(Process, pid)},
    {"mem", NUMBER, offsetof(Process, memory)},
    {"gi", NUMBER, offsetof(Process, gpu_instance)},
    {"ci", NUMBER, offsetof(Process, compute_instance)},
    {0},
};
static const Field XID_FIELDS[] = {
    {"code", NUMBER, offsetof(Xid, code)},
    {"seq", NUMBER, offsetof(Xid, sequence)},
    {0},
};

/* Fills `record` from the rest of a line, `key=value` by `key=value`; unknown keys are ignored. */
static void read_fields(const Field *fields, void *record, char **rest) {
    char *word;
    while ((word = strtok_r(NULL, " \t\n", rest))) {
        char *value = strchr(word, '=');
        if (!value)
            continue;
        *value++ = 0;
        for (const Field *field = fields; field->key; field++) {
            char *place = (char *)record + field->offset;
            if (strcmp(word, field->key))
                continue;
            if (field->kind == TEXT)
                snprintf(place, TEXT_SIZE, "%s", value);
            else
                *(long long *)place = strtoll(value, NULL, field->kind == HEX ? 16 : 0);
        }
    }
}

static void read_gpu(int index, char **rest) {
    Gpu *gpu = &state.gpus[index];
    *gpu = (Gpu){.used = true, .index = index, .minor = index, .bus = index + 1, .persistence = 1,
                 .link_down = -1, .mig = -1, .mig_pending = -1};
    read_fields(GPU_FIELDS, gpu, rest);
    for (char *letter = gpu->name; *letter; letter++)
        if (*letter == '_')
            *letter = ' ';
}

static void read_slice(int gpu, char **rest) {
    Slice slice = {.used = true};
    read_fields(SLICE_FIELDS, &slice, rest);
    if (slice.index >= 0 && slice.index < MAX_SLICES)
        state.gpus[gpu].slices[slice.index] = slice;
}

static void read_process(int gpu, char **rest) {
    Process process = {.gpu = gpu, .gpu_instance = NO_INSTANCE, .compute_instance = NO_INSTANCE};
    read_fields(PROCESS_FIELDS, &process, rest);
    if (state.process_count < MAX_PROCESSES)
        state.processes[state.process_count++] = process;
}

static void read_xid(int gpu, char **rest) {
    Xid xid = {.gpu = gpu};
    read_fields(XID_FIELDS, &xid, rest);
    if (state.xid_count < MAX_XIDS)
        state.xids[state.xid_count++] = xid;
}

static void read_line(char *line) {
    char *rest, *kind = strtok_r(line, " \t\n", &rest);
    if (!kind || *kind == '#')
        return;
    if (!strcmp(kind, "sys")) {
        read_fields(SYSTEM_FIELDS, &state, &rest);
        return;
    }
    char *index = strtok_r(NULL, " \t\n", &rest);
    int gpu = index ? atoi(index) : -1;
    if (gpu < 0 || gpu >= MAX_GPUS)
        return;
    if (!strcmp(kind, "gpu"))
        read_gpu(gpu, &rest);
    else if (!strcmp(kind, "mig"))
        read_slice(gpu, &rest);
    else if (!strcmp(kind, "proc"))
        read_process(gpu, &rest);
    else if (!strcmp(kind, "xid"))
        read_xid(gpu, &rest);
}

void reload_state(void) {
    static struct stat seen;
    const char *path = getenv("NVML_SHIM_CONF");
    struct stat now;
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) {
        state = (State){.init_error = DRIVER_NOT_LOADED};
        seen = (struct stat){0};
        return;
    }
    fstat(fileno(file), &now);
    if (now.st_mtim.tv_sec != seen.st_mtim.tv_sec || now.st_mtim.tv_nsec != seen.st_mtim.tv_nsec ||
        now.st_ino != seen.st_ino || now.st_size != seen.st_size) {
        char line[2048];
        seen = now;
        state = (State){.driver_version = "550.127.05", .nvml_version = "12.550.127.05",
                        .cuda_version = 12040};
        while (fgets(line, sizeof line, file))
            read_line(line);
    }
    fclose(file);
}

void lock_state(void) {
    pthread_mutex_lock(&mutex);
}

void unlock_state(void) {
    pthread_mutex_unlock(&mutex);
}

int enter(void) {
    lock_state();
    reload_state();
    if (state.hang_ms)
        usleep(state.hang_ms * 1000);
    return users ? SUCCESS : UNINITIALIZED;
}

int leave(int result) {
    unlock_state();
    return result;
}

Device device_of(void *handle) {
    for (Gpu *gpu = state.gpus; gpu < state.gpus + MAX_GPUS; gpu++) {
        if (handle == gpu)
            return (Device){gpu, NULL, SUCCESS};
        for (Slice *slice = gpu->slices; slice < gpu->slices + MAX_SLICES; slice++)
            if (handle == slice)
                return (Device){gpu, slice, SUCCESS};
    }
    return (Device){NULL, NULL, INVALID_ARGUMENT};
}

Device enter_device(void *handle) {
    int entered = enter();
    Device device = device_of(handle);
    if (entered != SUCCESS)
        device.result = entered;
    else if (device.result != SUCCESS)
        return device;
    else if (!device.gpu->used || device.gpu->lost)
        device.result = GPU_IS_LOST;
    else if (device.gpu->error)
        device.result = (int)device.gpu->error;
    else if (device.slice && !device.slice->used)
        device.result = INVALID_ARGUMENT;
    return device;
}

int copy_text(char *target, unsigned size, const char *text) {
    if (strlen(text) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(target, text);
    return SUCCESS;
}

static int initialize(void) {
    lock_state();
    reload_state();
    int result = (int)state.init_error;
    users += result == SUCCESS;
    return leave(result);
}

API int nvmlInit_v2(void) {
    return initialize();
}

API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return initialize();
}

API int nvmlShutdown(void) {
    lock_state();
    int result = users ? SUCCESS : UNINITIALIZED;
    users -= result == SUCCESS;
    return leave(result);
}
