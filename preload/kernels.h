/*
 * Inside of the provider cuda, layer gpu. kernels.c records what is launched; gpu.c knows GPUs, streams and functions; cupti.c has the times of kernels told by
 * NVIDIA's library for tools, where the profile asks for them.
 */
#ifndef ST_KERNELS_H
#define ST_KERNELS_H

#include "recorder.h"

/* gpu.c */
#define LEGACY_STREAM ((void *)1)    /* CU_STREAM_LEGACY: what no stream stands for */
#define STREAM_OF_THREAD ((void *)2) /* CU_STREAM_PER_THREAD: what it stands for in functions whose name ends in _ptsz */
struct st_object *gpu_device(int ordinal);
/* The stream in the current context; the thread's own for STREAM_OF_THREAD. */
struct st_object *gpu_stream(const struct st_thread *t, void *stream);
/* The stream of a kernel, by CUPTI's numbers. Asks the driver nothing. */
struct st_object *gpu_queue(uint32_t device, uint32_t context, uint32_t stream);
struct st_object *gpu_function(void *handle);
struct st_object *gpu_function_named(const char *name);
/* Handles of functions may be used again from here on. */
void gpu_unloaded(void);
struct st_object *gpu_track(const struct st_thread *t);

/* notes.c: what is to be known of how things were recorded (gpu_note), kept until there is a capture to tell it in. */
void note(unsigned topic, uint64_t number, const char *text);
void note_left_alone(const char *name, int version, uint64_t flags);
void note_export_table(const uint8_t *uuid);
/* Writes what was not written yet. */
void notes_tell(void);

/* kernels.c: ST_KERNELS_... of the profile; none makes a capture. */
unsigned kernels_wanted(void);
/* Whether launches are to lead to ours: also where that is not known yet. */
bool kernels_hooked(void);

/* cupti.c */
/* Starts it, once; needs the first context. */
void cupti_start(void);
/* Around a launch: cupti_leave returns its number, which its kernels will carry; 0: kernels are not timed. */
void cupti_enter(void);
uint64_t cupti_leave(void);
/* CUPTI's numbers of a stream in a context. false: not known. */
bool cupti_numbers(void *context, void *stream, uint32_t *of_context, uint32_t *of_stream);

#endif
