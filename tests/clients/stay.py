"""The typed answer of the scenarios."""

from pydantic import BaseModel


class Stay(BaseModel):
    """An answer of two fields."""

    city: str
    days: int
