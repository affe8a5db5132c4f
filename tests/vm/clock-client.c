/* How far this host's clock is ahead of another's, within bounds that nothing but the order of events is needed for:
 *   clock-client serve             answers with its time
 *   clock-client ask ADDRESS       prints "LOW HIGH": nanoseconds, the tightest of many questions
 * The answer's time lies between the question and its arrival, whatever the two ways took. */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(31999)}, from;
    socklen_t size = sizeof from;
    struct timeval limit = {1, 0};
    int64_t low = INT64_MIN, high = INT64_MAX, text[2];
    int s = socket(AF_INET, SOCK_DGRAM, 0), answers = 0;
    if (s < 0)
        return 1;
    if (argc == 2 && !strcmp(argv[1], "serve")) {
        if (bind(s, (void *)&at, sizeof at))
            return 1;
        while (recvfrom(s, text, sizeof text, 0, (void *)&from, &size) == sizeof text) {
            text[1] = now();
            sendto(s, text, sizeof text, 0, (void *)&from, size);
        }
        return 1;
    }
    if (argc != 3 || strcmp(argv[1], "ask") || inet_pton(AF_INET, argv[2], &at.sin_addr) != 1 || connect(s, (void *)&at, sizeof at) ||
        setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit))
        return 2;
    for (int64_t i = 0; i < 100; i++) {
        int64_t before = now();
        text[0] = i;
        if (send(s, text, sizeof text, 0) < 0 || recv(s, text, sizeof text, 0) != sizeof text || text[0] != i)
            continue;
        int64_t after = now();
        low = before - text[1] > low ? before - text[1] : low;
        high = after - text[1] < high ? after - text[1] : high;
        answers++;
    }
    if (!answers)
        return 1;
    printf("%lld %lld\n", (long long)low, (long long)high);
    return 0;
}
