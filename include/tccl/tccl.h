// The whole public API.
#pragma once

#include "tccl/communicator.h"
#include "tccl/context.h"
#include "tccl/error.h"
#include "tccl/info.h"
#include "tccl/operation.h"
#include "tccl/store.h"
#include "tccl/types.h"
#include "tccl/work.h"
