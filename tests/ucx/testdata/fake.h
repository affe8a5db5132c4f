/* A libucp that does what its caller says: for what a real one does seldom, and to see exactly what reaches it. */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>
#include <ucp/api/ucp.h>

enum { FAKE_LATER, FAKE_NOW, FAKE_OTHER_THREAD }; /* when the callback runs */

struct fake {
    /* what the next calls do */
    void *result;     /* of request functions; a pointer: a request is pending */
    int status;       /* of status functions */
    int when;         /* where a callback was given */
    int done_status;  /* passed to callbacks */
    int direct;       /* nbr does not go through the nbx function's public name */
    size_t fill_info; /* an immediate receive fills recv_info with this length, if not 0 */
    void (*in_progress)(void); /* what a blocking call's progress runs: a callback of the application that is no completion */

    /* what they saw */
    const void *param;
    ucp_request_param_t copy;
    void *callback;
    size_t count;
    unsigned long calls; /* of the innermost functions */
    unsigned long freed, released;
};
extern __thread struct fake fake;

/* Runs a callback that the library was given, as its progress would. info: for receives */
void fake_complete(void *callback, void *request, int status, const void *third, void *fourth);

#endif
