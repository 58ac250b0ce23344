/* Where a GPU sits: its bus, its NUMA node, its NVLinks. */
#include "state.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
} Pci;

static Pci pci_at(unsigned bus) {
    Pci pci = {.bus = bus, .device_id = 0x20b210de};
    snprintf(pci.legacy_id, sizeof pci.legacy_id, "0000:%02X:00.0", bus & 0xff);
    snprintf(pci.id, sizeof pci.id, "00000000:%02X:00.0", bus & 0xff);
    return pci;
}

GETTER(nvmlDeviceGetPciInfo_v3, Pci, pci_at((unsigned)device.gpu->bus))

/* nvmlGpuTopologyLevel_t: the same board 0, one host bridge 30, across the system 50 */
API int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *level) {
    int result = enter();
    Gpu *first = device_of(one).gpu, *second = device_of(other).gpu;
    if (result != SUCCESS)
        return leave(result);
    if (!first || !second)
        return leave(INVALID_ARGUMENT);
    if (first == second)
        *level = 0;
    else
        *level = first->numa == second->numa ? 30 : 50;
    return leave(SUCCESS);
}

API int nvmlDeviceGetMemoryAffinity(void *handle, unsigned size, unsigned long *nodes, unsigned scope) {
    (void)scope;
    Device device = enter_device(handle);
    if (device.result == SUCCESS && size > 0) {
        memset(nodes, 0, size * sizeof *nodes);
        nodes[0] = 1UL << device.gpu->numa;
    }
    return leave(device.result);
}

API int nvmlDeviceGetCpuAffinity(void *handle, unsigned size, unsigned long *cpus) {
    Device device = enter_device(handle);
    if (device.result == SUCCESS && size > 0) {
        memset(cpus, 0, size * sizeof *cpus);
        cpus[0] = 3;
    }
    return leave(device.result);
}

static Device enter_link(void *handle, unsigned link) {
    Device device = enter_device(handle);
    if (device.result == SUCCESS && !device.gpu->links)
        device.result = NOT_SUPPORTED;
    if (device.result == SUCCESS && link >= device.gpu->links)
        device.result = INVALID_ARGUMENT;
    return device;
}

API int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    Device device = enter_link(handle, link);
    if (device.result == SUCCESS)
        *active = link != device.gpu->link_down;
    return leave(device.result);
}

/* The links end at six switches. */
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, Pci *pci) {
    Device device = enter_link(handle, link);
    if (device.result == SUCCESS)
        *pci = pci_at(0xc0 + link % 6);
    return leave(device.result);
}

API int nvmlDeviceGetNvLinkErrorCounter(void *handle, unsigned link, unsigned counter, uint64_t *errors) {
    (void)counter;
    Device device = enter_link(handle, link);
    if (device.result == SUCCESS)
        *errors = 0;
    return leave(device.result);
}
