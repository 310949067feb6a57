/* The C header is C. */
#include "kvcache-c/PTX.h"

size_t kvcachePtxOptionsSize(void) { return sizeof(KvcachePtxOptions); }
