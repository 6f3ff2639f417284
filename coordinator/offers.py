"""Whether an offer is what was agreed on."""

from coordinator.coding import pulled_blob, update_codec
from coordinator.uploads import Uploads
from wire.messages import Offer, Train


def fault_in_offer(uploads: Uploads, offer: Offer, train: Train) -> str | None:
    """Return what is wrong with the answer to a `Train`, or None."""
    fault = uploads.fault_in_offer(offer.manifest, update_codec(train))
    if fault is not None:
        return fault
    if pulled_blob(train, offer) is None:
        return "offer: the model must have come in a blob that was announced"
    if offer.n_k < 1:
        return f"offer: n_k must be at least 1, got {offer.n_k}"
    if train.needs_loss and offer.loss_before is None:
        return "offer: loss_before is missing, and the aggregation rule needs it"
    return None
