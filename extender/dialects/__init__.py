"""What pods request of GPUs and what bound pods claim to have, in the dialect of each sharing system."""
