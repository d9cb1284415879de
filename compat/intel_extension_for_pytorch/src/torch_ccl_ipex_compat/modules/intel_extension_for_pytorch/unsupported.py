"""The error for names that this substitute does not have."""


def unsupported(module: str, name: str) -> AttributeError:
    return AttributeError(
        f"{module}.{name} is not supported: this is torch-ccl's substitute for "
        "intel_extension_for_pytorch, which has optimize, xpu.single_card and _C._has_xpu only"
    )
