"""What is left out is named when somebody asks for it."""


def left_out(module: str, name: str) -> AttributeError:
    return AttributeError(
        f"{module}.{name} is not there: this is torch-ccl's stand-in for "
        "intel_extension_for_pytorch, which has optimize, xpu.single_card and _C._has_xpu only"
    )
