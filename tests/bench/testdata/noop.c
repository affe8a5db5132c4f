/* The least that a preload can be: an empty constructor. */
__attribute__((constructor)) static void start(void) {}
