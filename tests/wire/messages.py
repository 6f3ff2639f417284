"""One message of every type, each optional field given and omitted: all wire tests use them."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from msgspec import structs

from fairbed.wire.messages import (
    AnyMessage,
    Augment,
    BaseArrived,
    Cancel,
    Capabilities,
    ChunkRequest,
    Coding,
    Context,
    CoordinatorStatus,
    DataScale,
    EvaluateReply,
    EvaluateRequest,
    Failed,
    Goodbye,
    Grant,
    HeldOut,
    Hello,
    Hyperparameters,
    Intent,
    LinkProbe,
    LinkProbeReply,
    LocalTraining,
    LocalValues,
    LogLine,
    LogLines,
    Manifest,
    Offer,
    OperatorAnswer,
    OperatorCommand,
    Optimiser,
    Packed,
    Personal,
    PersonalScore,
    PhaseEnergy,
    Phases,
    Ping,
    Pong,
    Privacy,
    Refuse,
    RowsPart,
    RowsRequest,
    Schedule,
    Signed,
    Status,
    SteadyTransfer,
    Train,
    Trouble,
    UploadAck,
    UploadDone,
    UploadResult,
    Welcome,
)

DIGEST = sha256(b"a blob").digest()
UPDATE_ID = bytes(range(16))

MODEL = Manifest(
    id=DIGEST[:16], kind="model", size_bytes=1_000_000, chunk_bytes=262_144, sha256=DIGEST
)
TASK = Manifest(id=DIGEST[:16], kind="task", size_bytes=12_500, chunk_bytes=262_144, sha256=DIGEST)
BASE = Manifest(
    id=DIGEST[:16], kind="base", size_bytes=100_840_000, chunk_bytes=262_144, sha256=DIGEST
)
SHARD = Manifest(id=DIGEST[:16], kind="shard", size_bytes=1, chunk_bytes=1024, sha256=DIGEST)
UPDATE = Manifest(id=UPDATE_ID, kind="update", size_bytes=1_000_000, chunk_bytes=262_144)

CAPABILITIES = Capabilities(
    cores=4,
    memory_bytes=4 << 30,
    machine="aarch64",
    python="3.11.2",
    engine="onnxruntime 1.31.1",
    engine_threads=2,
    agent="0.1.0",
)
PI = Capabilities(
    cores=4,
    memory_bytes=4 << 30,
    machine="aarch64",
    python="3.11.2",
    engine="onnxruntime 1.31.1",
    engine_threads=2,
    agent="0.1.0",
    model="Raspberry Pi 4 Model B Rev 1.4",
)
PHASES = Phases(
    download_s=0.75, load_s=0.0, evaluate_s=0.25, train_s=1.5, train_cpu_s=1.25, encode_s=0.125
)
NEWER = Capabilities(
    cores=4,
    memory_bytes=4 << 30,
    machine="aarch64",
    python="3.11.2",
    engine="onnxruntime 1.31.1",
    engine_threads=2,
    agent="0.2.0",
    codecs=("int8", "top-k", "delta", "of-tomorrow"),
)
ASKABLE = Capabilities(
    cores=4,
    memory_bytes=4 << 30,
    machine="aarch64",
    python="3.11.2",
    engine="onnxruntime 1.31.1",
    engine_threads=2,
    agent="0.3.0",
    codecs=(),
    skills=("loss", "of-tomorrow"),
    min_noise_multiplier=2.0,
    local_rules=("propfair", "scaffold:Scaffold"),
    engines=("onnx", "torch", "of-tomorrow"),
    models=("own_model",),
    clients=("my-client",),
)
DECODED = Phases(
    download_s=0.75,
    load_s=0.0,
    evaluate_s=0.25,
    train_s=1.5,
    train_cpu_s=1.25,
    encode_s=0.125,
    decode_s=0.0625,
)
PERSONAL = Phases(
    download_s=0.75,
    load_s=0.0,
    evaluate_s=0.0,
    train_s=1.5,
    train_cpu_s=1.25,
    encode_s=0.125,
    personal_s=1.75,
)
PLAIN_SGD = Hyperparameters(epochs=1, batch_size=20, learning_rate=0.1)
FULL_SGD = Hyperparameters(
    epochs=2,
    batch_size=32,
    learning_rate=0.05,
    momentum=0.9,
    weight_decay=0.001,
    proximal=0.01,
    clip_norm=5.0,
    max_steps=100,
    micro_batch=4,
)

MESSAGES: Mapping[str, AnyMessage] = {
    "status-on": Status(state="on", boot=17),
    "status-off": Status(state="off", boot=17),
    "coordinator": CoordinatorStatus(state="on", boot=23),
    "coordinator-run": CoordinatorStatus(
        state="off", boot=23, run="digits-12", run_id="2026-11-29-digits-12", task=DIGEST
    ),
    "intent": Intent(manifest=MODEL, boot=23),
    "intent-named": Intent(manifest=structs.replace(MODEL, name="1f-3"), boot=31),
    "hello": Hello(boot=17, capabilities=CAPABILITIES),
    "hello-nonce": Hello(boot=17, capabilities=CAPABILITIES, nonce=1_099_511_627_775),
    "hello-with-data": Hello(boot=17, capabilities=PI, n_k=600, clock_s=1_796_000_000.5),
    "hello-with-codecs": Hello(boot=17, capabilities=NEWER),
    "hello-with-skills": Hello(boot=17, capabilities=ASKABLE),
    "context": Context(boot=17, seq=0, mu_cores=1.0),
    "context-full": Context(
        boot=17,
        seq=41,
        mu_cores=1.875,
        downlink_bps=8e6,
        uplink_bps=1e6,
        link_age_s=12.5,
        is_willing=False,
        is_ready=True,
        n_k=600,
        is_warm=True,
        phase="train",
        cpu_ratio=0.75,
        rss_bytes=48 << 20,
        temperature_celsius=-3.5,
    ),
    "context-hot": Context(
        boot=17,
        seq=42,
        mu_cores=0.75,
        temperature_celsius=81.5,
        free_cores=3.5,
        clock_ratio=0.75,
        throttled=("soft-temperature-limit", "throttled"),
    ),
    "context-cool": Context(boot=17, seq=43, mu_cores=1.0, free_cores=0.0, throttled=()),
    "offer": Offer(
        round=3, manifest=UPDATE, model=DIGEST, phases=PHASES, n_k=600, steps=30, was_cold=False
    ),
    "offer-full": Offer(
        round=3,
        attempt=1,
        manifest=UPDATE,
        model=DIGEST,
        phases=PHASES,
        n_k=600,
        steps=30,
        was_cold=True,
        loss_before=2.25,
        loss_train=1.5,
        measured={"rerequests_down": 2.0},
        downlink_bps=8e6,
    ),
    "offer-steady": Offer(
        round=3,
        manifest=UPDATE,
        model=DIGEST,
        phases=PHASES,
        n_k=600,
        steps=30,
        was_cold=False,
        steady=SteadyTransfer(n_bytes=526_000, duration_s=0.25),
    ),
    "offer-coded": Offer(
        round=3,
        manifest=UPDATE,
        model=DIGEST,
        phases=DECODED,
        n_k=600,
        steps=30,
        was_cold=False,
        pulled=UPDATE_ID,
    ),
    "offer-energy": Offer(
        round=3,
        manifest=UPDATE,
        model=DIGEST,
        phases=structs.replace(
            PHASES,
            energy=PhaseEnergy(
                download_j=0.5,
                decode_j=0.0,
                load_j=0.0,
                evaluate_j=0.25,
                train_j=3.5,
                personal_j=0.0,
                encode_j=0.125,
            ),
        ),
        n_k=600,
        steps=30,
        was_cold=False,
    ),
    "offer-personal": Offer(
        round=3, manifest=UPDATE, model=DIGEST, phases=PERSONAL, n_k=600, steps=30, was_cold=False
    ),
    "offer-positions": Offer(
        round=3,
        manifest=UPDATE,
        model=DIGEST,
        phases=PHASES,
        n_k=600,
        steps=30,
        was_cold=False,
        positions=4_800,
    ),
    "offer-had-model": Offer(
        round=3,
        manifest=UPDATE,
        model=DIGEST,
        phases=PHASES,
        n_k=600,
        steps=30,
        was_cold=False,
        had_model=True,
    ),
    "evaluate-reply": EvaluateReply(
        round=3,
        model=DIGEST,
        loss=2.25,
        n=600,
        was_cold=True,
        download_s=0.75,
        decode_s=0.0,
        load_s=0.5,
        evaluate_s=0.25,
    ),
    "evaluate-reply-coded": EvaluateReply(
        round=3,
        attempt=1,
        model=DIGEST,
        loss=0.0,
        n=20,
        was_cold=False,
        download_s=0.25,
        decode_s=0.0625,
        load_s=0.0,
        evaluate_s=0.125,
        pulled=UPDATE_ID,
    ),
    "evaluate-reply-test": EvaluateReply(
        round=3,
        model=DIGEST,
        loss=1.5,
        n=40,
        was_cold=True,
        download_s=0.75,
        decode_s=0.0,
        load_s=0.25,
        evaluate_s=0.5,
        correct=31,
    ),
    "evaluate-reply-two-classes": EvaluateReply(
        round=3,
        model=DIGEST,
        loss=0.5,
        n=40,
        was_cold=False,
        download_s=0.75,
        decode_s=0.0,
        load_s=0.0,
        evaluate_s=0.5,
        correct=31,
        auroc=0.875,
    ),
    "evaluate-reply-sums": EvaluateReply(
        round=3,
        model=DIGEST,
        loss=0.5,
        n=40,
        was_cold=False,
        download_s=0.75,
        decode_s=0.0,
        load_s=0.0,
        evaluate_s=0.5,
        mae=0.75,
        rmse=1.5,
        sums={"mse": (90.0, 40.0), "f1": (8.0, 0.0, 32.0, 4.0)},
    ),
    "evaluate-reply-regression": EvaluateReply(
        round=3,
        model=DIGEST,
        loss=0.5,
        n=40,
        was_cold=False,
        download_s=0.75,
        decode_s=0.0,
        load_s=0.0,
        evaluate_s=0.5,
        mae=0.75,
        r2=-0.125,
    ),
    "evaluate-reply-positions": EvaluateReply(
        round=3,
        model=DIGEST,
        loss=1.5,
        n=40,
        was_cold=False,
        download_s=0.75,
        decode_s=0.0,
        load_s=0.0,
        evaluate_s=0.5,
        correct=155,
        positions=310,
        exact=2,
        iou=0.25,
        class_accuracy=0.375,
    ),
    "evaluate-request-test": EvaluateRequest(
        round=3, model=MODEL, seed=0, limit_s=30.0, split="test"
    ),
    "evaluate-request": EvaluateRequest(round=3, model=MODEL, seed=5, limit_s=30.0),
    "evaluate-request-client": EvaluateRequest(
        round=3,
        model=structs.replace(MODEL, raw_bytes=40),
        seed=5,
        limit_s=30.0,
        split="test",
        config=b"FBR1\x02\x00\x00\x00[]",
    ),
    "evaluate-reply-client": EvaluateReply(
        round=3,
        model=DIGEST,
        loss=0.5,
        n=40,
        was_cold=False,
        download_s=0.5,
        decode_s=0.0,
        load_s=0.0,
        evaluate_s=0.25,
        metrics={"top-5": 0.875},
        records=b"FBR1\x02\x00\x00\x00[]",
    ),
    "offer-client": Offer(
        round=3,
        manifest=structs.replace(UPDATE, raw_bytes=1_000_000),
        model=DIGEST,
        phases=DECODED,
        n_k=600,
        steps=0,
        was_cold=False,
        metrics={"loss": 0.5, "perplexity": 12.0},
    ),
    "welcome-client": Welcome(boot=23, task=TASK, shard=None, number=3, count=20),
    "train-client": Train(
        round=3,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=9,
        needs_loss=False,
        deadline_s=60.0,
        config=b"FBR1\x02\x00\x00\x00[]",
    ),
    "evaluate-request-batch": EvaluateRequest(
        round=3,
        attempt=1,
        model=MODEL,
        examples=20,
        seed=1_099_511_627_776,
        limit_s=2.5,
        coding=Coding(keep_model=True),
    ),
    "upload-done": UploadDone(round=3, id=UPDATE_ID, sha256=DIGEST, model=DIGEST),
    "upload-done-energy": UploadDone(
        round=3, id=UPDATE_ID, sha256=DIGEST, model=DIGEST, measured={"upload_j": 0.75}
    ),
    "upload-done-resent": UploadDone(
        round=3, id=UPDATE_ID, sha256=DIGEST, model=DIGEST, measured={"resent_up": 2.0}
    ),
    "personal-score": PersonalScore(round=3, n=60, correct=45, loss=0.75),
    "personal-score-two-classes": PersonalScore(round=3, n=60, correct=45, loss=0.75, auroc=0.5),
    "personal-score-regression": PersonalScore(round=3, n=60, loss=0.75, mae=1.25, r2=0.25),
    "personal-score-positions": PersonalScore(
        round=3, n=60, correct=90, loss=0.75, positions=120, exact=30, iou=0.5, class_accuracy=0.75
    ),
    "personal-score-sums": PersonalScore(
        round=3, n=60, loss=0.75, mae=1.25, rmse=1.5, sums={"mse": (135.0, 60.0)}
    ),
    "personal-score-none": PersonalScore(round=3, attempt=1, n=0),
    "failed": Failed(round=3, phase="train", reason="loss became NaN after 12 mini-batches"),
    "log-lines": LogLines(
        boot=17,
        first=41,
        lines=(
            LogLine(level="info", age_s=4.25, text="round 3: idle"),
            LogLine(level="warning", age_s=0.5, text="link lost: connection refused"),
        ),
    ),
    "trouble": Trouble(boot=17, kind="no engine", reason="onnxruntime cannot be imported"),
    "trouble-disk": Trouble(
        boot=17, kind="disk full", reason="no space", path="/var/lib/fairbed", free_bytes=4096
    ),
    "trouble-clock": Trouble(boot=17, kind="clock off", reason="set it", off_s=-86_400.5),
    "data-scale": DataScale(boot=17, low=-1.5, high=255.0, mean=0.25, spread=64.0),
    "base-arrived": BaseArrived(boot=17, size_bytes=100_840_000, download_s=41.5),
    "base-arrived-before": BaseArrived(boot=17, size_bytes=64),
    "chunk-request": ChunkRequest(id=DIGEST[:16], chunks=[0, 3, 4_194_304]),
    "link-probe": LinkProbe(seq=5),
    "link-probe-up": LinkProbe(seq=6, payload=bytes(range(64)), reply_bytes=65_536),
    "pong": Pong(seq=7),
    "welcome": Welcome(boot=23, task=TASK, shard=None),
    "welcome-base": Welcome(boot=23, task=TASK, shard=None, base=BASE),
    "welcome-held-out": Welcome(
        boot=23, task=TASK, shard=None, held_out=HeldOut(fraction=0.25, seed=5)
    ),
    "welcome-validation": Welcome(
        boot=23,
        task=TASK,
        shard=None,
        held_out=HeldOut(
            fraction=0.25, seed=5, validation=0.2, fold=10_001, evaluates="validation"
        ),
    ),
    "welcome-scale": Welcome(boot=23, task=TASK, shard=None, wants_scale=True),
    "welcome-log": Welcome(boot=23, task=TASK, shard=None, wants_log=True),
    "welcome-with-shard": Welcome(boot=23, task=TASK, shard=SHARD),
    "welcome-small-chunks": Welcome(boot=23, task=TASK, shard=None, max_chunk_bytes=112 * 1024),
    "train": Train(
        round=3,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=1_099_511_627_776,
        needs_loss=False,
        deadline_s=60.0,
    ),
    "train-full": Train(
        round=3,
        attempt=1,
        model=MODEL,
        hyperparameters=FULL_SGD,
        seed=99,
        needs_loss=True,
        deadline_s=60.0,
        keep_warm=True,
    ),
    "train-coded": Train(
        round=3,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
        coding=Coding(
            up="top-k",
            top_k=250,
            run="digits-12-a1b2",
            aggregated=2,
            model=Packed(manifest=TASK, codec="int8", base=DIGEST),
            keep_model=True,
        ),
    ),
    "train-coded-down": Train(
        round=3,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
        coding=Coding(model=Packed(manifest=TASK, codec="float16")),
    ),
    "train-coded-up": Train(
        round=3,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
        coding=Coding(up="int8"),
    ),
    "train-personal": Train(
        round=3,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
        personal=Personal(
            run="digits-12-a1b2",
            hyperparameters=Hyperparameters(
                epochs=1, batch_size=20, learning_rate=0.25, proximal=1.0
            ),
        ),
    ),
    "train-personal-choice": Train(
        round=3,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
        personal=Personal(
            run="digits-12-a1b2",
            init_seed=12,
            hyperparameters=PLAIN_SGD,
            choice="dynamic",
            candidates=(0.1, 1.0, 2.0),
        ),
    ),
    "train-local": Train(
        round=3,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
        coding=Coding(sent=1, returned=2),
        local=LocalTraining(
            rule="scaffold:Scaffold",
            options=(("option", 2), ("warm", True), ("rate", 0.5), ("kind", "a")),
            run="digits-12-a1b2",
            merged=2,
        ),
    ),
    "train-local-first": Train(
        round=1,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
        local=LocalTraining(rule="scaffold:Scaffold", run="digits-12-a1b2"),
    ),
    "train-local-values": Train(
        round=3,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
        local_values=LocalValues(run="digits-12-a1b2", init_seed=12, merged=2),
    ),
    "train-optimiser": Train(
        round=3,
        model=MODEL,
        hyperparameters=structs.replace(
            PLAIN_SGD,
            optimiser=Optimiser(
                name="adamw",
                nesterov=True,
                betas=(0.8, 0.99),
                epsilon=1e-6,
                keeps_state=True,
                run="digits-12-a1b2",
                merged=2,
            ),
            augment=(
                Augment(kind="crop", options=(("padding", 2),)),
                Augment(kind="own:blur", sha256=bytes(range(32))),
            ),
            schedule=Schedule(
                kind="cosine", warm_up=2, every=3, factor=0.5, length=9, least_ratio=0.1
            ),
        ),
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
    ),
    "train-personal-epochs": Train(
        round=1,
        model=MODEL,
        hyperparameters=structs.replace(PLAIN_SGD, personal_epochs=3),
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
        local_values=LocalValues(run="digits-12-a1b2", init_seed=12),
    ),
    "train-optimiser-plain": Train(
        round=1,
        model=MODEL,
        hyperparameters=structs.replace(PLAIN_SGD, optimiser=Optimiser(), schedule=Schedule()),
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
    ),
    "evaluate-request-local-values": EvaluateRequest(
        round=3,
        model=MODEL,
        seed=99,
        limit_s=60.0,
        split="test",
        local_values=LocalValues(run="digits-12-a1b2", init_seed=12),
    ),
    "train-privacy": Train(
        round=3,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
        privacy=Privacy(clip=0.5, noise_multiplier=4.0),
    ),
    "train-privacy-scores": Train(
        round=3,
        model=MODEL,
        hyperparameters=PLAIN_SGD,
        seed=99,
        needs_loss=False,
        deadline_s=60.0,
        privacy=Privacy(clip=0.5, noise_multiplier=4.0, scores=True),
    ),
    "grant": Grant(round=3, id=UPDATE_ID, window=4),
    "upload-ack": UploadAck(id=UPDATE_ID, received=b"\x0b"),
    "upload-result": UploadResult(round=3, id=UPDATE_ID, accepted=True),
    "upload-result-refused": UploadResult(
        round=3, id=UPDATE_ID, accepted=False, reason="vector: every value must be finite"
    ),
    "cancel": Cancel(round=3),
    "cancel-late": Cancel(round=3, reason="the deadline of 60 s has passed"),
    "ping": Ping(seq=7),
    "link-probe-reply": LinkProbeReply(seq=5),
    "link-probe-reply-down": LinkProbeReply(seq=6, payload=bytes(64)),
    "refuse": Refuse(reason="pi-7 is taken; choose another --name"),
    "refuse-final": Refuse(reason="übergroß: 5 µs, 3 × 4", is_final=True),
    "goodbye": Goodbye(),
    "goodbye-done": Goodbye(reason="30 rounds are done"),
    "command-run": OperatorCommand(id=UPDATE_ID, action="stop", run="2026-11-29-digits-12"),
    "signed": Signed(body=b"\x01\x82\xa1m\xa4ping\xa3seq\x07", signature=DIGEST),
    "command-trial": OperatorCommand(id=UPDATE_ID, action="kick", device="pi-7", is_trial=True),
    "command": OperatorCommand(id=UPDATE_ID, action="pause"),
    "command-exclude": OperatorCommand(id=UPDATE_ID, action="exclude", device="pi-7"),
    "command-set": OperatorCommand(id=UPDATE_ID, action="set", name="beta", value=0.2),
    "command-note": OperatorCommand(id=UPDATE_ID, action="note", text="the fan of pi-7 is off"),
    "command-throttle": OperatorCommand(
        id=UPDATE_ID, action="throttle", device="pi-7", name="cpu", value=0.5
    ),
    "answer": OperatorAnswer(id=UPDATE_ID, is_accepted=True, text="beta is 0.2 from round 13 on"),
    "answer-refused": OperatorAnswer(id=UPDATE_ID, is_accepted=False, text="no device 'pi-9'"),
    "rows-request": RowsRequest(id=UPDATE_ID, schema=bytes(16)),
    "rows-request-next": RowsRequest(id=UPDATE_ID, schema=bytes(16), after=b"a cursor"),
    "rows": RowsPart(id=UPDATE_ID, part=1, parts=2, body=b"the end of a page"),
    "rows-problem": RowsPart(id=UPDATE_ID, problem="16 viewers watch this run; close one"),
}
"""By the name of the golden file."""

Path = tuple[str | int, ...]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every plain value of a message in built-in types, without tags."""
    match value:
        case dict():
            for key, item in value.items():
                if key != "m":
                    yield from leaves(item, (*path, key))
        case list():
            for index, item in enumerate(value):
                yield from leaves(item, (*path, index))
        case _:
            yield path


def objects(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every object of a message in built-in types, the message first.

    Numbers that a device measured, or a client, have any name, so that they are no object.
    """
    if isinstance(value, dict):
        yield path
        for key, item in value.items():
            if key not in ("measured", "metrics", "sums"):
                yield from objects(item, (*path, key))
