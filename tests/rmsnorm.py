"""RMSNorm, forward and backward: an op that does not ship with nsabench."""

from nsabench.model.vocabulary import Direction
from nsabench.ops import Inputs, Op, Shape, Size, Work


class Sizes(Shape):
    """M rows of D elements."""

    M: Size
    D: Size


class RMSNorm(Op):
    name = "rmsnorm"
    arguments = ("x", "weight")
    options = ("eps",)
    shape_model = Sizes
    directions = tuple(Direction)
    differentiable = ("x", "weight")
    distributions = ("normal",)
    length_axis = "D"

    def length(self, shape):
        return shape.D

    def work(self, shape, dtype, distribution, seed):
        elements = shape.M * shape.D
        return Work((2 * elements + shape.D) * dtype.itemsize, 4 * elements)

    def differentiable_elements(self, shape):
        return shape.M * shape.D + shape.D

    def draw(self, shape, dtype, distribution, seed, device):
        import torch

        generator = torch.Generator(device=device).manual_seed(seed)
        like = {"dtype": getattr(torch, dtype), "device": device, "generator": generator}
        x = torch.randn(shape.M, shape.D, **like)
        weight = torch.randn(shape.D, **like)
        return Inputs({"x": x, "weight": weight}, {"eps": 1e-6})

    def oracle(self, inputs):
        return self._of(*self._wide(inputs), inputs.options["eps"])

    def gradients(self, inputs, grad_out):
        import torch

        leaves = [t.requires_grad_() for t in self._wide(inputs)]
        with torch.enable_grad():
            out = self._of(*leaves, inputs.options["eps"])
        found = torch.autograd.grad(out, leaves, grad_out.double())
        return dict(zip(("x", "weight"), found, strict=True))

    @staticmethod
    def _wide(inputs):
        return [inputs.tensors[name].double() for name in ("x", "weight")]

    @staticmethod
    def _of(x, weight, eps):
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


OP = RMSNorm()
