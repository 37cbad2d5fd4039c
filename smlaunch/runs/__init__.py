"""The edge that acts: pack, upload, create, follow and stop. The one room that changes anything outside."""
