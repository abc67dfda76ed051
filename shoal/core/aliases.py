"""What other frameworks call a setting: so that a word that is no setting of ours is answered with ours."""

from __future__ import annotations

from collections.abc import Iterable

# word -> what to say. Words are compared without case, with _ for -
_MEANT = {
    "global_batch": (
        "batch_size", "batch", "train_batch_size", "per_device_train_batch_size", "per_device_batch_size",
        "train_micro_batch_size_per_gpu", "bs",
    ),
    "epochs": ("max_epochs", "num_epochs", "num_train_epochs", "n_epochs", "nb_epochs", "epoch"),
    "steps": ("max_steps", "num_steps", "num_train_steps", "max_iters", "iterations", "step"),
    "workers": (
        "world_size", "nproc", "nproc_per_node", "num_processes", "n_workers", "num_nodes", "nodes", "gpus", "devices",
    ),
    "servers": ("num_servers", "num_ps", "ps"),
    "seed": ("random_seed", "manual_seed", "random_state", "rng_seed"),
    "accumulate": ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum", "accumulation_steps"),
    "clip.norm": ("gradient_clip_val", "gradient_clipping", "max_grad_norm", "clip_grad_norm", "grad_clip"),
    "clip.value": ("clip_grad_value", "clipvalue"),
    "precision": ("fp16", "bf16", "mixed_precision", "amp", "dtype"),
    "eval_every": (
        "eval_steps", "eval_strategy", "evaluation_strategy", "val_check_interval", "check_val_every_n_epoch",
        "eval_interval",
    ),
    "eval_batch": ("eval_batch_size", "val_batch_size", "test_batch_size", "per_device_eval_batch_size"),
    "device": ("accelerator", "cuda", "gpu"),
    "loader.shuffle": ("shuffle_data",),
    "loader.processes": ("dataloader_num_workers", "loader_workers"),
    "checkpoint.every": ("save_every", "save_steps", "save_interval", "save_strategy", "checkpoint_every"),
    "checkpoint.keep_last": ("save_total_limit", "max_to_keep", "num_to_keep"),
    "checkpoint.keep_best": ("save_top_k",),
    "checkpoint.monitor": ("metric_for_best_model", "monitor_metric"),
    "comm.codec": ("compression", "gradient_compression", "compressor"),
    "comm.timeout_s": ("timeout", "ddp_timeout"),
    "elastic.max_restarts": ("max_failures", "restarts"),
    "server.consistency": ("staleness", "sync_mode"),
    "run_dir": ("output_dir", "default_root_dir", "log_dir", "logdir", "save_dir", "checkpoint_dir", "storage_path"),
}  # fmt: skip
_OURS = {word: name for name, words in _MEANT.items() for word in words}
_IN_THE_SCRIPT = "the optimizer of the script has it: optimizer=lambda params: torch.optim.SGD(params, {}=...)"
_SAID = {
    "lr": _IN_THE_SCRIPT.format("lr"),
    "learning_rate": _IN_THE_SCRIPT.format("lr"),
    "momentum": _IN_THE_SCRIPT.format("momentum"),
    "weight_decay": _IN_THE_SCRIPT.format("weight_decay"),
    "num_workers": "'workers' is the number of processes that train, 'loader.processes' of those that read for each",
    "resume": "a run goes on when it is started again with the same run_dir (--run-dir)",
    "resume_from_checkpoint": "a run goes on when it is started again with the same run_dir (--run-dir)",
    "patience": "early stopping is a callback: callbacks=[shoal.callbacks.EarlyStopping(patience=3)]",
}


def setting_meant_by(word: str, known: Iterable[str]) -> str | None:
    """The setting that other frameworks call `word`, or whose last part it is (``codec``); None if there is none."""
    plain = word.lower().replace("-", "_")
    if plain in _OURS:
        return _OURS[plain]
    ends = [name for name in known if name.rpartition(".")[2] == plain]
    return ends[0] if len(ends) == 1 else None


def said_of(word: str) -> str | None:
    """What to say of a word that is no setting at all, where people look for one."""
    return _SAID.get(word.lower().replace("-", "_"))


def hint(word: str, known: Iterable[str]) -> str | None:
    """What to say to somebody who took `word` for a setting; None where nothing is known of it."""
    meant = setting_meant_by(word, known)
    return said_of(word) or (f"here it is called {meant!r}" if meant is not None else None)
