"""Everything that guesses ids ahead of the target model."""

from bytebound.drafts.base import Draft, ParkableDraft, Proposal, RewindingDraft
from bytebound.drafts.mtp import MtpDraft
from bytebound.drafts.ngram import NgramDraft

__all__ = ["Draft", "MtpDraft", "NgramDraft", "ParkableDraft", "Proposal", "RewindingDraft"]
