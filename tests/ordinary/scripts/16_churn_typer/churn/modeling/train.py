import pickle
from pathlib import Path

import pandas as pd
import typer
from loguru import logger
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from tqdm import tqdm

from churn.config import MODELS_DIR, PROCESSED_DATA_DIR

app = typer.Typer()


@app.command()
def main(
    data_path: Path = PROCESSED_DATA_DIR,
    model_path: Path = MODELS_DIR / "model.pkl",
    n_estimators: int = 60,
    seed: int = 0,
):
    logger.info("Training some model...")
    frames = [pd.read_csv(path) for path in tqdm(sorted(data_path.glob("*.csv")), desc="reading")]
    df = pd.concat(frames, ignore_index=True)
    x, y = df.drop(columns="churn"), df["churn"]
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=seed, stratify=y)

    model = RandomForestClassifier(n_estimators=n_estimators, random_state=seed, n_jobs=-1)
    model.fit(x_train, y_train)
    auc = roc_auc_score(y_test, model.predict_proba(x_test)[:, 1])
    logger.info(f"AUC on the test set: {auc:.3f}")

    with open(model_path, "wb") as f:
        pickle.dump(model, f)
    logger.success(f"Modeling training complete: {model_path}")


if __name__ == "__main__":
    app()
