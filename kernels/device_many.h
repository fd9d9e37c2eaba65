/*
 * device_many.h - several devices behind one table (device.h): the data of number i begins at
 * offset i * KVT_DEVICE_STRIDE, so that whoever moves pages need not know which device they are on.
 */
#ifndef KVT_KERNELS_DEVICE_MANY_H
#define KVT_KERNELS_DEVICE_MANY_H

#include "kernels/device.h"

/*
 * devices[0 .. n): 1 .. KVT_MAX_DEVICES of one kind; close closes them all. Heads are asked of the
 * devices themselves (this one has none), and the data cannot be addressed. A page in a staging
 * area goes into its own device's data alone: write_staged to another is KVT_EIO. failure: of the
 * first that has one. KVT_ENOMEM: the devices are still the caller's.
 */
kvt_status kvt_device_many_open(kvt_device *const *devices, uint32_t n, kvt_device **ret_device);

#endif
