"""Estimators of scikit-learn, written by skl2onnx: ONNX Runtime's results and scikit-learn's."""

import importlib
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

import pyflame_rt
from tests.tolerances import within

pytestmark = pytest.mark.filterwarnings("ignore")  # the three packages warn of each other
MODULES = (
    "cluster", "datasets", "decomposition", "discriminant_analysis", "ensemble", "gaussian_process", "impute",
    "linear_model", "mixture", "naive_bayes", "neighbors", "neural_network", "pipeline", "preprocessing", "svm",
)  # fmt: skip
ESTIMATORS = {
    "LogisticRegression in a pipeline": lambda sk: sk.make_pipeline(
        sk.StandardScaler(), sk.PCA(2), sk.LogisticRegression()
    ),
    "RandomForestClassifier in a pipeline": lambda sk: sk.make_pipeline(
        sk.SimpleImputer(), sk.QuantileTransformer(n_quantiles=20), sk.RandomForestClassifier(5, random_state=0)
    ),
    "SVC in a pipeline": lambda sk: sk.make_pipeline(sk.MinMaxScaler(), sk.PolynomialFeatures(2), sk.SVC()),
    "RandomForestClassifier": lambda sk: sk.RandomForestClassifier(20, random_state=0),
    "ExtraTreesClassifier": lambda sk: sk.ExtraTreesClassifier(10, random_state=0),
    "GradientBoostingClassifier": lambda sk: sk.GradientBoostingClassifier(n_estimators=10, random_state=0),
    "AdaBoostClassifier": lambda sk: sk.AdaBoostClassifier(n_estimators=5, random_state=0),
    "SVC with chances": lambda sk: sk.SVC(kernel="poly", probability=True, random_state=0),
    "KNeighborsClassifier": lambda sk: sk.KNeighborsClassifier(3),
    "MLPClassifier": lambda sk: sk.MLPClassifier((10,), max_iter=50, random_state=0),
    "GaussianNB": lambda sk: sk.GaussianNB(),
    "LinearDiscriminantAnalysis": lambda sk: sk.LinearDiscriminantAnalysis(),
    "RandomForestRegressor": lambda sk: sk.RandomForestRegressor(10, random_state=0),
    "GradientBoostingRegressor": lambda sk: sk.GradientBoostingRegressor(n_estimators=10, random_state=0),
    "SVR": lambda sk: sk.SVR(),
    "KNeighborsRegressor": lambda sk: sk.KNeighborsRegressor(),
    "GaussianProcessRegressor": lambda sk: sk.GaussianProcessRegressor(),
    "KMeans": lambda sk: sk.KMeans(3, n_init=1, random_state=0),
    "GaussianMixture": lambda sk: sk.GaussianMixture(2, random_state=0),
    "LocalOutlierFactor": lambda sk: sk.LocalOutlierFactor(novelty=True),
}


@pytest.fixture(scope="module")
def sk():
    """All names of scikit-learn in one place."""
    pytest.importorskip("skl2onnx")
    found = {}
    for module in MODULES:
        found |= vars(importlib.import_module(f"sklearn.{module}"))
    return SimpleNamespace(**found)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators(name, sk):
    to_onnx = importlib.import_module("skl2onnx").to_onnx
    load = sk.load_diabetes if name.endswith(("Regressor", "SVR")) else sk.load_iris
    features, wanted = load(return_X_y=True)
    features = features.astype(np.float32)
    estimator = ESTIMATORS[name](sk).fit(features, wanted)
    model = to_onnx(estimator, features[:1]).SerializeToString()
    peer = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"X": features})
    mine = pyflame_rt.InferenceSession(model).run(None, {"X": features})
    for got, want in zip(mine, peer, strict=True):
        if isinstance(want, list):  # a dictionary of chances for each row
            assert [list(row) for row in got] == [list(row) for row in want]
        np.testing.assert_allclose(_values(got), _values(want), **within("rounded"))
    np.testing.assert_allclose(np.ravel(mine[0]), estimator.predict(features), **within("rounded"))


def _values(result):
    return [list(row.values()) for row in result] if isinstance(result, list) else result
