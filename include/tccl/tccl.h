// The whole public API.
// Thread safety: see each header.
#pragma once

#include "tccl/communicator.h"
#include "tccl/context.h"
#include "tccl/error.h"
#include "tccl/info.h"
#include "tccl/operation.h"
#include "tccl/store.h"
#include "tccl/types.h"
#include "tccl/work.h"
