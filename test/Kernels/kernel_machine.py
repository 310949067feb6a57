"""The PTX machine as the kernel tests use it: every check on, findings as text."""
import importlib.util
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def load_binding():
    path = os.path.join(HERE, "..", "PTX", "ptx_machine.py")
    spec = importlib.util.spec_from_file_location("ptx_machine", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Device:
    def __init__(self, library):
        self.binding = load_binding()
        self.machine = self.binding.Machine(library)
        self.instructions, self.counters = 0, {}

    def module(self, path):
        with open(path) as f:
            return self.machine.module(f.read(), os.path.basename(path))

    def clear(self):
        self.machine.clear()

    def buffer(self, array, name, written=None, writable=False):
        """Address of an array. `written`: a byte for each byte, 0 = nobody wrote it; None: all are written."""
        return self.machine.buffer(array, name, written, not writable)

    def launch(self, module, kernel, grid, shared, arguments, late=False, quantum=0, block=128):
        options = dict(self.binding.ALL, lateCopies=int(late), quantum=quantum)
        report = self.machine.launch(module, kernel, grid, (block,), shared, arguments, **options)
        self.counters = report["counters"]
        self.instructions += self.counters["instructions"]
        return [str(f) for f in report["findings"]]
