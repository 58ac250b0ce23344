/* Xid errors, as event sets deliver them. */
#include "state.h"

#include <stdlib.h>
#include <unistd.h>

enum { XID_EVENT = 8, SINGLE_BIT_EVENT = 1, DOUBLE_BIT_EVENT = 2, POLL_MS = 20 };

/* For each GPU: the kinds that were registered, and the last Xid that was delivered. */
typedef struct {
    unsigned long long types[MAX_GPUS];
    long long delivered[MAX_GPUS];
} EventSet;

typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} EventData;

API int nvmlEventSetCreate(void **set) {
    int result = enter();
    if (result == SUCCESS)
        *set = calloc(1, sizeof(EventSet));
    return leave(result);
}

API int nvmlEventSetFree(void *set) {
    free(set);
    return SUCCESS;
}

GETTER(nvmlDeviceGetSupportedEventTypes, unsigned long long,
       XID_EVENT | DOUBLE_BIT_EVENT | SINGLE_BIT_EVENT)

/* What happened before the registration is never delivered. */
API int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, EventSet *set) {
    Device device = enter_device(handle);
    if (device.result != SUCCESS)
        return leave(device.result);
    long long index = device.gpu->index;
    set->types[index] |= types;
    for (Xid *xid = state.xids; xid < state.xids + state.xid_count; xid++)
        if (xid->gpu == index && xid->sequence > set->delivered[index])
            set->delivered[index] = xid->sequence;
    return leave(SUCCESS);
}

static bool take_event(EventSet *set, EventData *event) {
    for (Xid *xid = state.xids; xid < state.xids + state.xid_count; xid++) {
        if (!(set->types[xid->gpu] & XID_EVENT) || xid->sequence <= set->delivered[xid->gpu])
            continue;
        set->delivered[xid->gpu] = xid->sequence;
        *event = (EventData){&state.gpus[xid->gpu], XID_EVENT, (unsigned long long)xid->code,
                             NO_INSTANCE, NO_INSTANCE};
        return true;
    }
    return false;
}

API int nvmlEventSetWait_v2(EventSet *set, EventData *event, unsigned timeout_ms) {
    for (unsigned waited_ms = 0;; waited_ms += POLL_MS) {
        lock_state();
        reload_state();
        bool taken = take_event(set, event);
        unlock_state();
        if (taken)
            return SUCCESS;
        if (waited_ms >= timeout_ms)
            return TIMEOUT;
        usleep(POLL_MS * 1000);
    }
}
