"""A client that behaves as `config["how"]` says; each way is one that a device must survive."""

import os
import subprocess
import sys
import time

import numpy as np


class Client:
    """Adds 1 to its weights and counts its trainings in its state."""

    def __init__(self, context):
        self.context = context
        self.n_examples = 5
        how = context.options.get("constructor")
        if how == "raise":
            raise RuntimeError("no camera")
        if how == "hang":
            note(context, [os.getpid()])
            time.sleep(987)
        if how == "folder":
            self.n_examples = len(os.listdir(context.folder))

    @staticmethod
    def initial(config):
        return {
            "w": np.full((2, 3), config.get("start", 0.0)),
            "seen": np.zeros(2, np.int64),
            "b": np.zeros(3, np.float32),
            "trees": b"",
        }

    def fit(self, arrays, config):
        how, context = config.get("how", ""), self.context
        if how == "loss":
            return arrays, 4, {"before": 0.75, "loss": 0.5, "steps": 12}
        x_and_y = context.examples()
        n = 4 if x_and_y is None else len(x_and_y[1])
        arrays["w"] += 1.0
        arrays["b"] += np.float32(config["learning_rate"])
        arrays["seen"][0] += n
        arrays["trees"] += b"tree,"
        context.state["rounds"] = context.state.get("rounds", 0) + 1
        context.state["last"] = arrays["w"].copy()
        if how and context.number == context.options.get("only", context.number):
            misbehave(how, arrays, context)
        return arrays, n, {"rounds": context.state["rounds"], "number": context.number}

    def evaluate(self, arrays, config):
        test = self.context.test_examples()
        if test is None:
            return float(arrays["w"].mean()), 8, {"accuracy": 0.75}
        return 0.5, len(test[1]), {"accuracy": 1.0, "width": test[0].shape[1]}


class Silent:
    """A class without `evaluate`, `initial` and a context; its arrays are a list."""

    def fit(self, arrays, config):
        return [2 * array for array in arrays], 3, {}


def misbehave(how, arrays, context):
    sleep = ["sleep", f"987.{context.options.get('mark', 0)}"]
    if how == "write":
        with open("left.txt", "a") as file:
            file.write("left\n")
    if how == "raise":
        print("epoch 1 of 3")
        raise ValueError("no\nlabels")
    if how == "exit":
        print("giving up")
        os._exit(3)
    if how == "sys.exit":
        sys.exit(4)
    if how == "abort":
        os.abort()
    if how == "hang":  # also what it has started, in other sessions, too
        children = [
            subprocess.Popen(sleep),
            subprocess.Popen(sleep, start_new_session=True),
        ]
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.execvp("sleep", sleep)
            os._exit(0)
        note(context, [os.getpid(), *(child.pid for child in children)])
        time.sleep(987)
    if how == "until stopped":
        note(context, [os.getpid()])
        while not context.should_stop():
            time.sleep(0.01)
    if how == "print":
        for _ in range(100):
            os.write(1, b"x" * 999_999 + b"\n")
        print("the end", flush=True)
        raise ValueError("too much")
    if how == "nan":
        arrays["w"][1, 2] = np.nan
    if how == "shape":
        arrays["w"] = arrays["w"].ravel()
    if how == "dtype":
        arrays["seen"] = arrays["seen"].astype(np.float64)
    if how == "missing":
        del arrays["b"]
    if how == "pickle":
        arrays["w"] = np.array([[object()] * 3] * 2)
    if how == "large state":
        context.state["cache"] = bytes(3000)
    if how == "large":
        arrays["trees"] = bytes(150_000)
    if how == "huge":
        arrays["trees"] = bytes(300_000)
    if how == "object in state":
        context.state["model"] = object()
    if how == "processes":
        for _ in range(60):
            subprocess.Popen(sleep, stdin=subprocess.DEVNULL)
        time.sleep(987)


def note(context, pids):
    with open(os.path.join(context.folder, "pids.part"), "w") as file:
        file.write(" ".join(map(str, pids)))
    os.rename(file.name, file.name[:-5])


class Busy:
    """Computes for as many processor seconds as its options say, in a process of its own."""

    def __init__(self, context):
        self.context = context

    def fit(self, arrays, config):
        seconds = config.get("seconds", 1.0)
        begun = time.monotonic()
        if config.get("in_child"):
            code = f"import time\nwhile time.process_time() < {seconds}: pass"
            subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
        else:
            until = time.process_time() + seconds
            while time.process_time() < until:
                pass
        return arrays, 1, {"took_s": time.monotonic() - begun}
